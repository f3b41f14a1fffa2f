"""Common parts of every self-contained HTML page: security policy, template, plain ASCII."""

import base64
import hashlib
import html
import re
from collections.abc import Mapping
from importlib.resources import files

from gradweave.printable import printable

_TEMPLATE = files("gradweave.report") / "template"


def security_policy(script: str, style: str) -> str:
    """The content security policy that admits only the page's script and style."""
    directives = (
        "default-src 'none'",
        f"script-src '{_digest(script)}'",
        f"style-src '{_digest(style)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(directives)


def ascii_only(text: str) -> str:
    """The text with other characters as HTML character references."""
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _digest(text: str) -> str:
    """The hash by which a content security policy admits an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode(
        "ascii"
    )


def template(name: str) -> str:
    """A file of the page templates."""
    return (_TEMPLATE / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def filled(name: str, title: str, style: str, script: str, parts: Mapping[str, str]) -> str:
    """Fills a template with the head that all pages share and with the page's parts.

    Args:
        name: file name of the template.
        title: plain text.
        style: the only style that the page's security policy admits.
        script: likewise; may be empty.
        parts: the template's other parts, as HTML; placeholders inside them are not replaced.
    """
    title = ascii_only(html.escape(printable(title)))
    own = {"title": title, "style": style, "script": script}
    head = _with_parts("head.html", own | {"policy": security_policy(script, style)})
    return _with_parts(name, {**own, **parts, "head": head})


def _with_parts(name: str, parts: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template(name))


def static_page(kind: str, kicker: str, title: str, summary: str, body: str, style: str) -> str:
    """A self-contained page that moves nothing; its only script tells a notebook its height.

    Args:
        kind: class of its main element.
        kicker: the kind of page in words, shown above the title.
        title: plain text; the other parts are HTML.
        summary: shown below the title.
        body: the rest.
        style: added to the style of all pages.
    """
    parts = {"kind": kind, "kicker": kicker, "summary": summary, "body": body}
    style = template("page.css") + style
    return ascii_only(filled("static.html", title, style, template("frame.js"), parts))
