"""Secrets, texts that hold them, and texts that only look so: what the tests of redaction share."""

from __future__ import annotations

import base64
import html
import json
import re
from urllib.parse import quote, quote_plus

from mcprl.secrets import SecretRegistry

KEY = "3f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c"
AWKWARD = "p\"a\\s/s w+ö<r>&d=1'2%3€4\n5"


VALUES = [KEY, AWKWARD, "sk-proj-AbCd1234", "пароль-Ünïcode", "a+b/c==d+e/f==", "  spaced key  "]


def registry(**secrets: str) -> SecretRegistry:
    made = SecretRegistry()
    for name, value in secrets.items():
        made.add(name, value)
    return made


ENCODINGS = {
    "plain": str,
    "quote": quote,
    "quote everything": lambda value: quote(value, safe=""),
    "quote lower case": lambda value: re.sub("%..", lambda match: match[0].lower(), quote(value, safe="")),
    "quote_plus": quote_plus,
    "json": lambda value: json.dumps(value)[1:-1],
    "json unicode": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "json slashes": lambda value: json.dumps(value)[1:-1].replace("/", "\\/"),
    "json for html": lambda value: json.dumps(value)[1:-1].replace("<", "\\u003c").replace("&", "\\u0026"),
    "json twice": lambda value: json.dumps(json.dumps(value))[3:-3],
    "repr": lambda value: repr(value)[1:-1],
    "html": html.escape,
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 url-safe": lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    "base64 quoted": lambda value: quote(base64.b64encode(value.encode()).decode(), safe=""),
}
EMBEDDED = {
    "basic": lambda value: base64.b64encode(f"user:{value}".encode()).decode(),
    "basic one more": lambda value: base64.b64encode(f"users:{value}".encode()).decode(),
    "basic two more": lambda value: base64.b64encode(f"my-user:{value}".encode()).decode(),
    "base64 in the middle": lambda value: base64.b64encode(f"k={value}&x=1".encode()).decode(),
}


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEowIBAAKCAQEA7bq9\n" * 5 + "AbC=\n-----END RSA PRIVATE KEY-----"

KEY_LIKE = {
    # text: (secret part, what stands in its place)
    **{
        f"GET https://api.test/v3/quote?{name}={KEY}&symbol=AAPL": (KEY, "[redacted key]")
        for name in (
            *("apikey", "api_key", "api-key", "ApiKey", "APIKEY", "access_token", "token", "key", "secret", "password"),
            *("sig", "signature", "client_secret", "auth", "auth_token", "X-Amz-Signature", "x-api-key"),
        )
    },
    f"https://api.test/v3/quote?symbol=AAPL&apikey={KEY}": (KEY, "[redacted key]"),
    f'{{"url": "https://api.test/q?a=1&amp;apikey={KEY}"}}': (KEY, "[redacted key]"),
    f'{{"url": "https:\\/\\/api.test\\/q?a=1\\u0026token={KEY}\\"}}': (KEY, "[redacted key]"),
    f"redirect=https%3A%2F%2Fapi.test%2Fq%3Fapikey%3D{KEY}%26a%3D1": (KEY, "[redacted key]"),
    "https://api.test/q?password=hunter2": ("hunter2", "[redacted key]"),
    '{"api_key": "' + KEY + '"}': (KEY, "[redacted key]"),
    "{'access_token': 'ya29.a0AfH6SMBx1234567'}": ("ya29.a0AfH6SMBx1234567", "[redacted key]"),
    '{\\"clientSecret\\": \\"' + KEY + '\\"}': (KEY, "[redacted key]"),
    f"X-Api-Key: {KEY}": (KEY, "[redacted header]"),
    f"Authorization: Bearer {KEY}": (KEY, "[redacted header]"),
    "authorization: token abc123": ("abc123", "[redacted header]"),
    "{'Authorization': 'Basic dXNlcjpwYXNz'}": ("dXNlcjpwYXNz", "[redacted header]"),
    f'"authorization":"{KEY}"': (KEY, "[redacted header]"),
    f"(b'authorization', b'Bearer {KEY}')": (KEY, "[redacted header]"),
    f"sent bearer {KEY}, got 401": (KEY, "[redacted header]"),
    "curl -H 'Basic dXNlcjpwYXNz'": ("dXNlcjpwYXNz", "[redacted header]"),
    "postgres://ada:s3cret@db.test:5432/x": ("s3cret", "[redacted password]"),
    "https://:s3cret@api.test/": ("s3cret", "[redacted password]"),
    **{
        f"key {key}, wrong": (key, "[redacted key]")
        for key in (
            "sk-" + "aB3" * 8,
            "sk-proj-" + "aB3_" * 10,
            "sk-ant-api03-" + "aB3-" * 10,
            "xoxb-123456789012-abcdefGHIJKL",
            "xoxp-123456789012-abcdefGHIJKL",
            "xapp-1-A0123456789-abcdef",
            "ghp_" + "aB3" * 12,
            "gho_" + "aB3" * 12,
            "github_pat_" + "aB3_" * 12,
            "tvly-dev-" + "aB3" * 8,
            "AKIAIOSFODNN7EXAMPLE",
            "AIza" + "aB3_-" * 7,
            "hf_" + "aBc" * 12,
            "glpat-" + "aB3_" * 5,
            "sk_live_" + "aB3" * 8,
        )
    },
    f"a%20ghp_{'aB3' * 12}%20b": (f"ghp_{'aB3' * 12}", "[redacted key]"),
    f'"line\\nghp_{"aB3" * 12}\\n"': (f"ghp_{'aB3' * 12}", "[redacted key]"),
    f"\\u0022{JWT}\\u0022": (JWT, "[redacted token]"),
    "Authorization%3A%20Basic%20dXNlcjpwYXNz": ("dXNlcjpwYXNz", "[redacted header]"),
    f"token {JWT}.": (JWT, "[redacted token]"),
    f"the key:\n{PEM}\nend": (PEM, "[redacted private key]"),
    json.dumps({"pem": PEM}): (json.dumps(PEM)[1:-1], "[redacted private key]"),
    quote(PEM, safe="/+="): (quote(PEM, safe="/+="), "[redacted private key]"),
    f"cut: {PEM[:90]}": (PEM[:90].rstrip(), "[redacted private key]"),
}


ORDINARY = [
    "AAPL closed at $189.84 (+1.2%), volume 51,234,567; P/E 29.3.",
    '{"symbol": "AAPL", "price": 189.84, "marketCap": 2950000000000, "exchange": "NASDAQ", "key": "AAPL-2024-01-02"}',
    '{"next_token": "b3BhcXVlLWN1cnNvci0xMjM0NTY3ODkw", "cache_key": "user-profile-1234567890abcdef"}',
    '{"nextPageToken": "CAoQAA1234567890abcdef", "idempotency_key": "order-000000000000001"}',
    "token = tokenizer.encode(x)\nfor token in tokens: print(token)",
    "sorted(rows, key=lambda x: x[1]); max(d, key=d.get); df.sort_values(by='x', key=abs)",
    "api_key = os.environ['FMP_API_KEY']\nclient = Client(api_key=api_key, secret=None, password=getpass())",
    'requests.get(url, params={"apikey": API_KEY}, headers={"Authorization": f"Bearer {token}"})',
    'url = f"https://api.test/v3/quote?symbol={s}&apikey={key}"',
    '"https://api.test/quote?apikey=%s" % key, "https://api.test/q?apikey=" + key, "?token=${TOKEN}&key=<KEY>"',
    "GET https://api.test/list?sort_key=name&page=2&per_page=100&key=name&token=next&order=desc",
    "https://shop.test/search?q=key+chain&author=ada&keyword=signature&monkey=1&secret=true&password=1",
    "https://en.test/wiki/Basic_access_authentication and https://host.test:8443/path?x=1@2",
    "git@github.com:owner/repo.git, ada@host.test, http://host.test:8080/a:b@c",
    "Bearer of bad news: the bearer must show a passport. Basic JavaScript, Basic understanding, basic authentication.",
    "Authorization: required. Authorization is needed; authorization: none. See the Authorization header.",
    "The secret to good bread: time. Password: at least 12 characters. The key: patience. auth: yes",
    "the risk-adjusted task-oriented disk-usage-report-2024-final-version-1234567890; sk-learn; sk-estimator-id-1",
    'class="sk-folding-cube sk-top-container-wrapper-element" hf_model = AutoModel; ghp_ and AKIA and eyJ and xoxb-',
    "eyJhbGciOiJIUzI1NiJ9 alone is no token; e.g. file.name.with.dots and 1.2.3",
    "-----BEGIN CERTIFICATE-----\nMIIEowIBAAKCAQEA7bq9\n-----END CERTIFICATE-----",
    "550e8400-e29b-41d4-a716-446655440000 sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "if (a &token==b) { auto &key=map; } x = a & key; y = a &b; what?token; really? key=1",
    "lines\nwith\ttabs, ünïcode, 日本語, emoji 🙂, İstanbul and \\u0026 \\n escapes &amp; &lt;html&gt;",
    "[redacted key] and [redacted FMP_API_KEY] stay",
]


SIZE = 64 * 1024
HOSTILE = [
    *("a", "?key=", "?apikey=a&", "=?key", "&", "&amp;", "%3fkey%3d", "://a:", "://a:b@", "://" + "a" * 256, "@://"),
    *("authorization: ", "x-api-key: ", "basic ", "Basic aaaaaaaa", "bearer ", "api_key: '", "key='1", '"', "\\"),
    *("sk-", "sk-a1", "xoxb-", "ghp_", "AKIA", "eyJ-", "eyJaaaaaaaa.", "-----BEGIN PRIVATE KEY-----", "[redacted "),
    *(KEY, KEY[:31], KEY[:16] + "x", "p%22a%5c", "[redacted key]", "MIIEowIBAAKCAQEA7bq9\n", "\n", "key"),
]
