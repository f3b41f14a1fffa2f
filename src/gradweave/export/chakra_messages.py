"""The messages of Chakra's execution traces, with the fields that are written.

Described here, for protobuf's runtime, with the numbers and types of MLCommons' schema
(``et_def.proto``, package ``ChakraProtoMsg``); no generated code is needed.
"""

import functools
from typing import Any

from gradweave.export.protobuf import Field as _Field
from gradweave.export.protobuf import message_classes

COMPUTE, SEND, RECEIVE = 4, 5, 6
"""``COMP_NODE``, ``COMM_SEND_NODE`` and ``COMM_RECV_NODE`` of the enumeration ``NodeType``."""

_PACKAGE = "ChakraProtoMsg"
_ATTRIBUTE = f".{_PACKAGE}.AttributeProto"

# Name, number, type, whether repeated.
_MESSAGES = {
    "AttributeProto": (
        ("name", 1, _Field.TYPE_STRING, False),
        ("int32_val", 7, _Field.TYPE_INT32, False),
        ("int64_val", 9, _Field.TYPE_INT64, False),
        ("bool_val", 27, _Field.TYPE_BOOL, False),
        ("string_val", 29, _Field.TYPE_STRING, False),
    ),
    "GlobalMetadata": (
        ("version", 1, _Field.TYPE_STRING, False),
        ("attr", 2, _ATTRIBUTE, True),
    ),
    "Node": (
        ("id", 1, _Field.TYPE_UINT64, False),
        ("name", 2, _Field.TYPE_STRING, False),
        # An enumeration, which is written as an integer.
        ("type", 3, _Field.TYPE_INT32, False),
        ("data_deps", 5, _Field.TYPE_UINT64, True),
        ("attr", 10, _ATTRIBUTE, True),
    ),
}


@functools.cache
def messages() -> dict[str, type[Any]]:
    """The message classes ``AttributeProto``, ``GlobalMetadata`` and ``Node``, by name."""
    return message_classes(_PACKAGE, _MESSAGES, one_of={"AttributeProto": "_val"})


def attribute(name: str, value: bool | int | str, *, wide: bool = False) -> Any:
    """An ``AttributeProto``; integers have 32 bits unless wide."""
    kind = {bool: "bool_val", str: "string_val"}.get(
        type(value), "int64_val" if wide else "int32_val"
    )
    return messages()["AttributeProto"](**{"name": name, kind: value})


def delimited(message: Any) -> bytes:
    """A message as bytes, its length before it as a varint."""
    content = message.SerializeToString(deterministic=True)
    length, prefix = len(content), bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*prefix, length]) + content
