"""`weightsync show`: one version in full."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightsync.cli import words
from weightsync.cli.context import Context
from weightsync.cli.options import RUN, STORE, TRUST, verb
from weightsync.clock import SYSTEM

if TYPE_CHECKING:
    from weightsync.catalog import Catalog, VersionRecord
    from weightsync.format.layout import Layout
    from weightsync.format.versions import Payload


@verb(STORE, RUN, TRUST)
def show(
    context: Context,
    *,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="A number, or a channel for where it points.")] = "latest",
    tensors: Annotated[bool, typer.Option("--tensors", help="List the tensors too.")] = False,
    path: Annotated[
        tuple[str, str] | None,
        typer.Option("--path", metavar="FROM TO", help="Show what leads from one version (or `nothing`) to another, and its bytes."),
    ] = None,
) -> None:
    """Shows one version in full, or the way between two.

    Its manifest, the payloads that lead to it, its files and their sizes, its parent.

    Examples:
      1. The newest version
           weightsync show --store file:///data/store --run tuning
      2. Version 7 with all its tensors, for a script
           weightsync show 7 --store file:///data/store --run tuning --tensors --json
      3. What a host that holds version 3 would download
           weightsync show --path 3 latest --store file:///data/store --run tuning
    """
    if path is not None:
        from weightsync.cli import show_path

        show_path.run(context, *path)
        return
    from weightsync.cli import look

    catalog = context.catalog
    record = look.resolve(catalog, version)
    layout = catalog.layout(record.manifest.layout)
    document = look.summary(record, layout.lanes)
    document |= {
        "run": catalog.run().run,
        "store": catalog.store.url,
        "writer": record.manifest.writer,
        "channels": sorted(name for name, number in look.channels(catalog).items() if number == record.ref.version),
        "objects": _objects(record),
        "layout": _layout(record, layout),
        "payloads": [_payload(payload) for payload in catalog.payloads(record)],
        "files": _files(catalog, record),
    }
    if tensors:
        document["tensors"] = [{"name": t.name, "dtype": t.dtype.name, "shape": list(t.shape), "bytes": t.nbytes} for t in layout.tensors]
    context.out.document(document)
    _print(context, document)


def _objects(record: "VersionRecord") -> dict[str, int]:
    """Bytes in the store, by kind, of what only this version needs."""
    manifest = record.manifest
    return {"manifest": record.nbytes, "digests": manifest.digests.nbytes, "shards": manifest.payload_bytes}


def _layout(record: "VersionRecord", layout: "Layout") -> dict[str, Any]:
    return {
        "digest": layout.digest,
        "bytes": record.manifest.layout.nbytes,
        "tensors": len(layout.tensors),
        "aliases": dict(layout.aliases),
        "chunks": layout.first_chunks[-1],
        "chunk_lanes": layout.chunk_lanes,
        "leaf": layout.leaf,
        "tensor_bytes": layout.nbytes,
        "dtypes": sorted({tensor.dtype.name for tensor in layout.tensors}),
    }


def _payload(payload: "Payload") -> dict[str, Any]:
    return {
        "form": payload.form.value,
        "base": payload.base_version,
        "writer": payload.writer,
        "bytes": payload.nbytes,
        "changed_lanes": payload.changed_lanes,
        "shards": [{"digest": shard.digest, "bytes": shard.nbytes, "first": shard.first, "last": shard.last} for shard in payload.shards],
    }


def _files(catalog: "Catalog", record: "VersionRecord") -> list[dict[str, Any]]:
    table = catalog.file_table(record.manifest.files)
    kinds = (("small", table.small), ("tensors", table.tensors))
    return [{"name": f.name, "kind": kind, "stored_bytes": f.ref.nbytes} for kind, files in kinds for f in files]


def _print(context: Context, found: dict[str, Any]) -> None:
    out = context.out
    changed = f"{words.percent(found['changed_lanes'], found['lanes'])} ({found['changed_lanes']:,} of {found['lanes']:,} lanes)"
    created_s = SYSTEM.now_s() - _created_s(found["created"])
    layout = found["layout"]
    lines = {
        "version": f"{found['version']} of run {found['run']}",
        "step": "-" if found["step"] is None else str(found["step"]),
        "created": f"{found['created']} ({words.age(created_s)} ago), epoch {found['epoch']}, writer {found['writer']}",
        "channels": ", ".join(found["channels"]) or "-",
        "parent": "-" if found["parent"] is None else str(found["parent"]),
        "changed": changed,
        "checkpoint": words.size(found["checkpoint_bytes"]),
        "stored": ", ".join(f"{kind} {words.size(nbytes)}" for kind, nbytes in found["objects"].items()),
        "layout": f"{layout['tensors']} tensors ({', '.join(layout['dtypes'])}), {layout['chunks']} chunks, leaves {layout['leaf']}",
        "root": found["root"],
        "manifest": found["manifest"],
    }
    if found["note"]:
        lines["note"] = found["note"]
    for name, text in lines.items():
        out.line(f"{name:<11} {text}")
    out.line()
    rows = [(p["form"], str(p["base"] or "-"), p["writer"], str(len(p["shards"])), words.size(p["bytes"])) for p in found["payloads"]]
    out.table(("payload", "from", "writer", "shards", "bytes"), rows)
    if found["files"]:
        out.line()
        out.table(("file", "kind", "stored"), [(f["name"], f["kind"], words.size(f["stored_bytes"])) for f in found["files"]], left=2)
    if found.get("tensors"):
        out.line()
        lines_of = [(t["name"], t["dtype"], "x".join(map(str, t["shape"])) or "scalar", words.size(t["bytes"])) for t in found["tensors"]]
        out.table(("tensor", "dtype", "shape", "bytes"), lines_of, left=2)


def _created_s(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()
