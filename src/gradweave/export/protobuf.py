"""Protobuf messages from descriptions in Python, without generated code or a protobuf compiler."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = descriptor_pb2.FieldDescriptorProto
"""Holds the constants of the types, such as ``Field.TYPE_STRING``."""
Fields = Sequence[tuple[str, int, Any, bool]]
"""Name, number, type (or the name of a message with a dot before its package), whether repeated."""


def message_classes(
    package: str,
    messages: Mapping[str, Fields],
    *,
    syntax: str = "proto3",
    one_of: Mapping[str, str] | None = None,
) -> dict[str, type[Any]]:
    """Classes of messages, by name.

    Args:
        package: package of the messages.
        messages: their fields.
        syntax: syntax of the schema; with ``proto2``, zeros that are set are written.
        one_of: for a message, the common ending of the names of fields of which only one is set.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"gradweave/{package}.proto", package=package, syntax=syntax
    )
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        ending = (one_of or {}).get(message)
        if ending is not None:
            described.oneof_decl.add(name="value")
        for name, number, kind, repeated in fields:
            field = described.field.add(
                name=name,
                number=number,
                label=Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL,
            )
            if isinstance(kind, str):
                field.type, field.type_name = Field.TYPE_MESSAGE, kind
            else:
                field.type = kind
            if ending is not None and name.endswith(ending):
                field.oneof_index = 0
    # A separate pool, since a program may also load the schema's own messages.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }
