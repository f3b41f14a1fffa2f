"""What every self-contained page of HTML needs: its security policy, its parts, plain ASCII."""

import base64
import hashlib
import html
import re
from collections.abc import Mapping
from importlib.resources import files

from gradweave.printable import printable

_TEMPLATE = files("gradweave.report") / "template"


def security_policy(script: str, style: str) -> str:
    """The content security policy that admits the page's own script and style alone."""
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
    """Text whose other characters are written as HTML says."""
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _digest(text: str) -> str:
    """The hash by which a content security policy admits an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode(
        "ascii"
    )


def template(name: str) -> str:
    """A file of the page's template."""
    return (_TEMPLATE / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def filled(name: str, title: str, style: str, script: str, parts: Mapping[str, str]) -> str:
    """A page: its template with the head that all pages have, and with its parts.

    Args:
        name: of the template.
        title: as text.
        style: the only one that the page's security policy admits.
        script: likewise; may be empty.
        parts: what else the template names, as HTML; none is looked into for others.
    """
    title = ascii_only(html.escape(printable(title)))
    own = {"title": title, "style": style, "script": script}
    head = _with_parts("head.html", own | {"policy": security_policy(script, style)})
    return _with_parts(name, {**own, **parts, "head": head})


def _with_parts(name: str, parts: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template(name))


def static_page(kind: str, kicker: str, title: str, summary: str, body: str, style: str) -> str:
    """A self-contained page without scripts.

    Args:
        kind: class of its main element.
        kicker: what kind of page it is, in words, above the title.
        title: as text; the other parts are HTML.
        summary: below the title.
        body: the rest.
        style: beside that of all pages.
    """
    parts = {"kind": kind, "kicker": kicker, "summary": summary, "body": body}
    return ascii_only(filled("static.html", title, template("page.css") + style, "", parts))
