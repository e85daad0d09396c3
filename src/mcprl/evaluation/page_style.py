"""The style of the HTML report: one sheet, light and dark, for wide screens and phones."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root{color-scheme:light dark;--page:#fbfaf8;--card:#fff;--ink:#1d2429;--dim:#5c6870;--line:#e2e0da;--track:#efede8;
--main:#0b7a75;--main-soft:#0b7a7526;--second:#b4530a;--second-soft:#b4530a26;--good:#1a7f4b;--bad:#b5412b;
--same:#8a949b;--on:#fff}
@media (prefers-color-scheme:dark){:root{--page:#14181b;--card:#1c2226;--ink:#e8ebed;--dim:#a0abb2;--line:#303940;
--track:#2a3238;--main:#3fb8ae;--main-soft:#3fb8ae2e;--second:#f0a35e;--second-soft:#f0a35e2e;--good:#52c68a;
--bad:#f08a73;--same:#78848c;--on:#14181b}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,sans-serif;
overflow-wrap:anywhere}
main{max-width:1080px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em}
h2{font-size:1.15rem;margin:40px 0 12px}
h3{font-size:.95rem;margin:0 0 12px;font-weight:600}
p{margin:0 0 8px}
.sub,.note,.method{color:var(--dim)}
.sub{margin-bottom:24px}
.note{font-size:.9rem;margin-top:10px}
.method{font-size:.9rem;margin-top:48px;border-top:1px solid var(--line);padding-top:16px}
.verdict{font-size:1.05rem;font-weight:600}
.heads{display:grid;grid-template-columns:repeat(auto-fit,minmax(146px,1fr));gap:12px;margin:0;padding:0;list-style:none}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px}
.heads .name{color:var(--dim);font-size:.85rem}
.heads .value{font-size:1.65rem;font-weight:650;line-height:1.25;font-variant-numeric:tabular-nums}
.heads .about{color:var(--dim);font-size:.8rem;font-variant-numeric:tabular-nums}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:16px;margin-top:16px;
align-items:start}
figure{margin:0}
svg{display:block;width:100%;max-width:560px;height:auto;margin:0 auto}
svg text{font-size:12.5px;fill:var(--ink)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums;overflow-wrap:normal}
th,td{padding:7px 14px 7px 0;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--dim)}
th:first-child,td:first-child{text-align:left;white-space:normal;min-width:9rem}
th:last-child,td:last-child{padding-right:0}
tr:last-child td{border-bottom:0}
summary{cursor:pointer;font-weight:600}
details{margin-top:16px}details .scroll{margin-top:12px}
:focus-visible{outline:3px solid var(--main);outline-offset:2px;border-radius:4px}
.start{text-anchor:start}.middle{text-anchor:middle}.end{text-anchor:end}
svg .num{font-variant-numeric:tabular-nums}svg .dim{fill:var(--dim)}
.track{fill:var(--track)}.bar{fill:var(--main)}.bar.all{fill:var(--same)}.bar.bad{fill:var(--second)}
.whisker{stroke:var(--ink);stroke-width:1.6}
.rule,.grid{stroke:var(--line);stroke-width:1}.frame{fill:none;stroke:var(--line)}
.band{stroke:none}.band.one{fill:var(--main-soft)}.band.two{fill:var(--second-soft)}
.path{fill:none;stroke-width:2.2}.path.one{stroke:var(--main)}.path.two{stroke:var(--second)}
.dot.one{fill:var(--main)}.dot.two{fill:var(--second)}
svg .ink-one{fill:var(--main);font-weight:600}svg .ink-two{fill:var(--second);font-weight:600}
.way{stroke-width:4}.way.good{stroke:var(--good)}.way.bad{stroke:var(--bad)}
.before{fill:var(--card);stroke:var(--dim);stroke-width:2}
.after.good,.spot.good{fill:var(--good)}.after.bad,.spot.bad{fill:var(--bad)}.spot.same{fill:var(--same)}
svg .on-spot{fill:var(--on);font-weight:600}
@media (max-width:520px){main{padding:20px 14px 48px}h1{font-size:1.35rem}.card{padding:12px}
.heads{grid-template-columns:1fr 1fr}.heads .value{font-size:1.35rem}svg text{font-size:13.5px}}
@media print{body{background:none}.card{break-inside:avoid}}
"""
