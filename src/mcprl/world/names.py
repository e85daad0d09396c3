"""Invented names: of companies, of their tickers, and of people."""

from __future__ import annotations

from mcprl.world.draws import Draws

__all__ = ["invent_people", "invent_stems", "invent_ticker"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# An onset with an r or l of its own is followed by a coda without one: "Skand…" can be said, "Krerl…" cannot.
_PLAIN_ONSETS = _words("B C D F G H J K L M N P Qu R S T V W Z Sk St Sw Th")
_LIQUID_ONSETS = _words("Br Cr Dr Fr Gl Gr Kl Kr Pl Pr Sl Tr")
_LIQUID_CODAS = _words("l lk ld lm lv r rb rd rk rm rn rv")
_PLAIN_CODAS = _words("n nd nt nv st th v x z nk ct")
_NUCLEI = _words("a e i o u")
_TAILS = _words(
    "abex adane adris afane agant akor alith amere amond anar anex aquist aren ethan ivane ivik ixen ozar obel oden "
    "ofar olan omir onor orend oris ostra othen uvane"
)

_VOWELS = "AEIOUY"
# Tickers that people know and abbreviations that appear in prose or code, as far as they have no vowel: ours have none.
_TAKEN = frozenset(
    _words(
        "MSFT JPM WMT CVX MRK CRM KHC NFLX PLTR TGT CVS MDT LRCX SNPS CDNS FTNT CRWD TXN BLK SCHW TMUS NKE DKNG RBLX "
        "SNDK WDC STX HPQ DLTR MCD CMG LMT RTX NSC CSX XLK XLF VXX FDX PLD SPG PSX MPC SLB KMB MNST STZ CTVA DHR TFC "
        "PNC MTB STT LNC TRV PGR HWM TDG LHX DHI PHM TTD FSLR NXT VST NRG DDOG PTC MRVL MPWR KKR FCX NTR DVN BKR HRL "
        "TSN SJM CPB GPN FTV CHTR WBD GLD SLV LQD TLT BND SCHD DXCM RMD BMRN VRTX SPX QQQ BRK TSM DFS LVS MGM DJT "
        "GRMN SWK TRP PBR DLR SQM VRSN VRSK WRB NDSN DRVN TRMB LRN STRL PRGS NVR NVS KRNT TRN SNX BRX CRBN PRM THRD "
        "SKX PXD PCT MNT STL PLT SLT SLD SKN DRCT "
        "TRST FRNK PLNT "
        "GDP SQL PDF HTTP HTML LLC LTD PHD GMT YTD TTM USD GBP CNY TLS SSH CSV XML CPU GPU RPC MCP TCP DNS VPN STR STD "
        "SRC PTR TXT MSG CTX SRV DRV PWR LST CNT NTH MTH MPH LBS FRM THX PLZ PLS BTW RST TST BLVD MRS HMM PSST TSK SHH "
        "BRR GRR PST FBI NBC CBS BBC DVD LCD PVC NHL NBA NFL FTX"
    )
)

_FIRST_NAMES = _words(
    "Adaeze Alina Amara Anders Beatriz Bogdan Camila Chidi Daria Dmitri Elena Emeka Farah Felix Gita Goran Hana Henrik "
    "Imani Ines Jonas Kaito Kamala Lars Leila Linh Mateo Mira Nadia Nils Oksana Olu Paloma Priya Rafael Renata Sanjay "
    "Selma Tariq Thandi Tomas Uma Viktor Wanjiru Yara Yusuf Zofia"
)
_LAST_NAMES = _words(
    "Abara Adeyemi Alvarado Andersen Banerjee Bergstrom Castellan Dlamini Dufresne Eriksen Farouk Fontaine Galanis "
    "Haddad Halvorsen Ibarra Ivanenko Jansson Kaminski Kimura Kowalczyk Lindqvist Mbeki Moreau Nakagawa Novotny Okafor "
    "Olsen Osei Pereira Quintero Rahimi Ramaswamy Sandoval Sorensen Takeda Tran Ueda Valdez Vasquez Wachira Whitlock "
    "Xiong Yilmaz Zeman Zielinski"
)


def invent_ticker(stem: str, length: int) -> str:
    """The first consonants of a name. Without a vowel it is no English word, so that prose never holds it by chance.

    >>> invent_ticker("Valdixen", 4)
    'VLDX'
    """
    return "".join(letter for letter in stem.upper() if letter not in _VOWELS)[:length]


def _invent_stem(draws: Draws) -> str:
    onset = draws.choice(_PLAIN_ONSETS + _LIQUID_ONSETS)
    codas = _PLAIN_CODAS if onset in _LIQUID_ONSETS else _PLAIN_CODAS + _LIQUID_CODAS
    return onset + draws.choice(_NUCLEI) + draws.choice(codas) + draws.choice(_TAILS)


def invent_stems(draws: Draws, count: int) -> list[tuple[str, str]]:
    """`count` names with their tickers, such as ("Valdixen", "VLDX"). No two tickers start with the same three letters,
    so that one is never the start of another and a slip of the pen rarely turns one into another.
    """
    found: dict[str, tuple[str, str]] = {}
    while len(found) < count:
        stem = _invent_stem(draws)
        ticker = invent_ticker(stem, 3 if draws.chance(0.3) else 4)
        doubled = any(letter * 2 in ticker for letter in ticker)
        if len(ticker) >= 3 and not doubled and ticker not in _TAKEN and ticker[:3] not in found:
            found[ticker[:3]] = (stem, ticker)
    return list(found.values())


def invent_people(draws: Draws, count: int) -> list[str]:
    """`count` full names, all of them different."""
    firsts, lasts = draws.shuffled(_FIRST_NAMES), draws.shuffled(_LAST_NAMES)
    # The lists have 47 and 46 names, so that going round in both at once repeats no pair for a long time.
    return [f"{firsts[i % len(firsts)]} {lasts[i % len(lasts)]}" for i in range(count)]
