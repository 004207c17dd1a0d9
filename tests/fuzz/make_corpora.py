#!/usr/bin/env python3
"""Writes the corpora that no test writes: .deps/peers/bin/python tests/fuzz/make_corpora.py

Small files as other programs write them, and hostile ones. Needs h5py, numpy and Pillow of
`script/setup --peers`. Corpora that are here already keep what was found since.
"""

import bz2
import gzip
import io
import json
import os
import pathlib
import pickle
import struct
import tarfile
import zipfile

import h5py
import numpy
from PIL import Image

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE.parent / "unit/checkpoint/golden"

IMAGES = (numpy.arange(4 * 5 * 4 * 3) * 31 % 251).astype(numpy.uint8).reshape(4, 5, 4, 3)
LABELS = numpy.array([0, 1, 2, 1])


def save(corpus, name, content):
    folder = HERE / corpus
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def toml():
    save("toml", "training", 'nprocs = 2\nseed = 3\nlr = 1e-3\ntrackers = ["csv", "jsonl"]\n'
         '[hyperparams]\nmomentum = 0.9\nname = \'a\'\n"quoted key" = """\nmany\nlines"""\n')
    save("toml", "every_kind", "a = 1979-05-27T07:32:00-08:00\nb = 07:32:00.5\nc = 1979-05-27\nd = 0xdead_beef\n"
         "e = 0o755\nf = 0b1101\ng = inf\nh = nan\ni = [[1, 2], ['x', 'y'], {z = 1}]\nj.k.l = true\n"
         "[[tables]]\nn = 1\n[[tables]]\nn = -2\n[tables.inner]\nu = \"\\u00e9\\U0001F600\"\n")
    save("toml", "empty", "")
    save("toml", "hostile_twice", "a = 1\na = 2\n")
    save("toml", "hostile_open", '[a\nb = "')
    save("toml", "hostile_deep", "a = " + "[" * 2000 + "]" * 2000 + "\n")
    save("toml", "hostile_number", "a = 99999999999999999999999999\n")
    save("toml", "umlauts", '# f\u00fcr alle\nname = "J\u00fcrgen \\"\u00e9"  # \u00e9\n\'\u00e4\' = \'\'\'x\'\u00f6\'\'\'\n'
         'long = """a""\u00fc"""""\n')
    save("toml", "byte_order_mark", "\ufeffa = 1\n")
    save("toml", "hostile_umlaut", "cl\u00e9 = 1\n")
    save("toml", "hostile_presentation_form", "\ufef1\n")
    save("toml", "hostile_bytes", b"a = \"\xff\xfe\"\n\x00")


def exported():
    """Hostile programs of .pt2 files; the valid ones are from tests/unit/exported/golden/make_golden.py."""
    net = (HERE / "exported_program" / "net").read_text()

    def change(name, old, new, count=1):
        assert old in net, old
        save("exported_program", f"hostile_{name}", net.replace(old, new, count))

    change("cut_off", net[len(net) // 2:], "")
    change("deep", '"as_tensor": {"name": "x"}', '"as_graph": ' + '{"a": ' * 500 + "0" + "}" * 500)
    change("unknown_operator", "torch.ops.aten.relu_.default", "torch.ops.aten.relu_.other")
    change("file_operator", "torch.ops.aten.relu_.default", "torch.ops.aten.from_file.default")
    change("other_namespace", "torch.ops.aten.relu_.default", "torch.ops.evil.relu_.default")
    change("python_function", "torch.ops.aten.relu_.default", "os.system")
    change("unknown_argument", '"name": "momentum"', '"name": "impulse"')
    change("wrong_type", '"as_float": 0.1', '"as_string": "0.1"')
    change("large_number", '"as_float": 0.1', '"as_int": 99999999999999999999')
    change("used_before_defined", '"as_tensor": {"name": "linear"}', '"as_tensor": {"name": "linear_1"}')
    change("version", '"schema_version": {"major": 8', '"schema_version": {"major": 7')
    change("negative_size", '{"as_int": 3}', '{"as_int": -3}', -1)
    change("no_input", '"buffer_name": "layers.1.running_mean"', '"buffer_name": "layers.1.running_var"')
    change("many_terms", '"range_constraints": {"s77"', '"range_constraints": {"' + "+".join(["s77"] * 1001) + '"')
    change("many_factors", "Symbol('s77', positive=True, integer=True)", "Mul(" + ", ".join(["Integer(1)"] * 1000) + ")", -1)
    change("long_quotient", '"range_constraints": {"s77"', '"range_constraints": {"s77' + "//2" * 1000 + '"')
    change("cycle", '"arg": {"as_tensor": {"name": "x"}}', '"arg": {"as_tensor": {"name": "relu_"}}')
    change("internal_operator", "torch.ops.aten.relu_.default", "torch.ops.aten._reshape_alias.default")

    with zipfile.ZipFile(HERE / "exported_archive" / "line.pt2") as line:
        records = {name: line.read(name) for name in line.namelist() if not name.endswith(".data/serialization_id")}

    def archive(name, record, edit):
        full = next(each for each in records if each.endswith(record))
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as out:
            for each, content in {**records, full: edit(records[full])}.items():
                out.writestr(zipfile.ZipInfo(each), content)
        save("exported_archive", name, packed.getvalue())

    archive("plain_zip.pt2", "model.json", lambda text: text)
    archive("hostile_cut_program.pt2", "model.json", lambda text: text[:len(text) // 2])
    archive("hostile_cut_config.pt2", "model_weights_config.json", lambda text: text[:len(text) // 2])
    archive("hostile_cut_weight.pt2", "weight_0", lambda content: content[:2])
    archive("hostile_cycle.pt2", "model.json", lambda text: text.replace(b'"arg": {"as_tensor": {"name": "input"}}', b'"arg": {"as_tensor": {"name": "linear"}}', 1))
    archive("hostile_nested.pt2", "model_weights_config.json", lambda text: b'{"config": ' + b"[" * 500 + b"]" * 500 + b"}")


def answers():
    def http(body, status="200 OK", head=""):
        return f"HTTP/1.1 {status}\r\n{head}Content-Length: {len(body)}\r\n\r\n{body}"

    experiment = '{"experiment": {"experiment_id": "3", "lifecycle_stage": "active"}}'
    run = '{"run": {"info": {"run_id": "abc", "artifact_uri": "mlflow-artifacts:/3/abc/artifacts"}}}'
    save("http_answer", "bodies", "\n== \n".join([experiment, run, "{}"]))
    save("http_answer", "whole", "\n== \n".join([http(experiment), http(run), http("{}")]))
    save("http_answer", "new_experiment", "\n== \n".join(
        [http('{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"}', "404 Not Found"),
         http('{"experiment_id": "4"}'), run, "{}"]))
    save("http_answer", "chunked", "\n== \n".join(
        [f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{len(experiment):x}\r\n{experiment}\r\n0\r\n\r\n",
         run, "{}"]))
    save("http_answer", "hostile_deleted", '{"experiment": {"experiment_id": "3", "lifecycle_stage": "deleted"}}')
    save("http_answer", "hostile_types", '{"experiment": {"experiment_id": 3}}')
    save("http_answer", "hostile_message", http('{"message": {"a": [1]}}', "400 Bad Request"))
    save("http_answer", "hostile_missing", "{}")
    save("http_answer", "hostile_list", "[1, 2]")
    save("http_answer", "hostile_page", http("<html>502</html>", "502 Bad Gateway", "Content-Type: text/html\r\n"))
    save("http_answer", "hostile_length", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}")
    save("http_answer", "hostile_status", "HTTP/1.1 99999 \r\n\r\n{}")
    save("http_answer", "hostile_cut", "HTTP/1.1 200 OK\r\nContent-Le")
    save("http_answer", "hostile_redirect", "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n")


def rendezvous_bodies():
    for file in sorted((HERE / "rendezvous").iterdir()):
        if file.name not in ("stream", "hostile_http", "hostile_cut"):
            save("rendezvous_body", file.name, file.read_bytes()[8:])


def npy(array):
    content = io.BytesIO()
    numpy.save(content, array)
    return content.getvalue()


def images():
    for name, options in {"plain": {}, "chunks": {"chunks": (2, 5, 4, 3)},
                          "deflate": {"chunks": (2, 5, 4, 3), "compression": "gzip"},
                          "shuffle": {"chunks": (1, 5, 4, 3), "compression": "gzip", "shuffle": True}}.items():
        for version in ("earliest", "latest"):
            content = io.BytesIO()
            with h5py.File(content, "w", libver=version) as file:
                file.create_dataset("images", data=IMAGES, **options)
                file.create_dataset("labels", data=LABELS)
            # The reader supports a part of HDF5; files that it must refuse have names with hostile_.
            refused = version == "latest" and name != "plain"
            save("hdf5", f"{'hostile_' if refused else ''}{name}_{version}", content.getvalue())
    save("hdf5", "hostile_signature", b"\x89HDF\r\n\x1a\n")

    save("npy", "four", npy(IMAGES) + npy(LABELS))
    save("npy", "bytes", npy(IMAGES[..., 0]) + npy(LABELS.astype(numpy.uint8)))
    save("npy", "hostile_one", npy(IMAGES))
    save("npy", "hostile_fortran", npy(numpy.asfortranarray(IMAGES)) + npy(LABELS))
    save("npy", "hostile_floats", npy(IMAGES.astype(numpy.float32)) + npy(LABELS))

    def tensors(images, labels):
        header = (f'{{"images":{{"dtype":"U8","shape":{images},"data_offsets":[0,{IMAGES.nbytes}]}},"labels":'
                  f'{{"dtype":"I64","shape":{labels},"data_offsets":[{IMAGES.nbytes},{IMAGES.nbytes + 32}]}}}}')
        return struct.pack("<Q", len(header)) + header.encode() + IMAGES.tobytes() + LABELS.tobytes()

    save("image_tensors", "four", tensors("[4,5,4,3]", "[4]"))
    save("image_tensors", "hostile_shape", tensors("[4,5,4,9223372036854775807]", "[4]"))
    save("image_tensors", "hostile_labels", tensors("[4,5,4,3]", "[5]"))

    def idx(shape, data):
        return bytes([0, 0, 8, len(shape)]) + b"".join(struct.pack(">I", size) for size in shape) + data

    labels, pixels = idx([4], bytes([0, 1, 2, 1])), idx([4, 5, 4], bytes(range(80)))
    save("idx", "plain", bytes([len(labels)]) + labels + pixels)
    packed = gzip.compress(labels, mtime=0)
    save("idx", "packed", bytes([len(packed)]) + packed + gzip.compress(pixels, mtime=0))
    save("idx", "hostile_cut", bytes([len(labels)]) + labels + pixels[:-1])
    save("idx", "hostile_size", bytes([len(labels)]) + labels + idx([4, 0xFFFFFFFF, 0xFFFFFFFF], bytes(80)))

    picture = Image.fromarray(numpy.tile(IMAGES[0], (4, 4, 1)))
    for name, image, options in (("rgb.png", picture, {}), ("grey.png", picture.convert("L"), {}),
                                 ("palette.png", picture.convert("P"), {}), ("alpha.png", picture.convert("RGBA"), {}),
                                 ("bits.png", picture.convert("1"), {}), ("rgb.jpg", picture, {"quality": 80}),
                                 ("progressive.jpg", picture, {"progressive": True}),
                                 ("grey.jpg", picture.convert("L"), {})):
        content = io.BytesIO()
        image.save(content, "JPEG" if name.endswith("jpg") else "PNG", **options)
        save("picture", name, content.getvalue())
    save("picture", "hostile_gif", b"GIF89a")
    save("picture", "hostile_size.png", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x7f\xff\xff\xff\x7f\xff\xff\xff\x08\x02"
         b"\x00\x00\x00")


def tensor_files():
    def npz(write, **arrays):
        content = io.BytesIO()
        write(content, **arrays)
        return content.getvalue()

    table = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    save("tensor_file", "floats.npy", npy(table))
    save("tensor_file", "fortran.npy", npy(numpy.asfortranarray(table)))
    save("tensor_file", "complex.npy", npy(table.astype(numpy.complex128)))
    save("tensor_file", "scalar.npy", npy(numpy.float64(1)))
    save("tensor_file", "stored.npz", npz(numpy.savez, x=table, y=LABELS))
    save("tensor_file", "packed.npz", npz(numpy.savez_compressed, x=table, y=LABELS))
    save("tensor_file", "hostile_objects.npy", npy(numpy.array(["a", 1], object)))
    save("tensor_file", "hostile_order.npy", npy(table.astype(">f4")))
    save("tensor_file", "hostile_cut.npz", npz(numpy.savez, x=table, y=LABELS)[:200])

    # Python 2 wrote CIFAR's files, in protocol 2; protocol 4 has other instructions for the same values.
    def cifar(**items):
        return pickle.dumps(items, protocol=4)

    pixels = numpy.arange(2 * 3072, dtype=numpy.uint8).reshape(2, 3072)
    save("cifar_pickle", "train", cifar(data=pixels, fine_labels=[3, 99], coarse_labels=[0, 19], filenames=["a", "b"]))
    save("cifar_pickle", "meta", cifar(fine_label_names=[str(i) for i in range(100)]))
    save("cifar_pickle", "hostile_floats", cifar(data=pixels.astype(numpy.float32), fine_labels=[3, 99]))
    save("cifar_pickle", "hostile_labels", cifar(data=pixels, fine_labels="39"))
    save("cifar_pickle", "hostile_cut", cifar(data=pixels, fine_labels=[3, 99])[:300])


def archives():
    def tar(files, pack=lambda content: content):
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            for name, data in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        return pack(content.getvalue())

    names, records = b"x\n" * 100, bytes([1, 2]) + bytes(3072) + bytes([3, 99]) + bytes(range(256)) * 12
    files = {"cifar/fine_label_names.txt": names, "cifar/train.bin": records}
    save("image_archive", "packed", tar(files, lambda content: gzip.compress(content, mtime=0)))
    save("image_archive", "bzip", tar(files, bz2.compress))
    save("image_archive", "hostile_label", tar({**files, "cifar/train.bin": bytes([1, 200]) + bytes(3072)},
                                               lambda content: gzip.compress(content, mtime=0)))
    save("image_archive", "hostile_none", b"no archive")


def weights():
    (HERE / "torch_file").mkdir(exist_ok=True)
    for name in ("big_endian", "every_kind_2", "every_kind_5", "legacy", "network", "script", "tied_script", "training",
                 "tuple", "two_outputs", "wrapped", "single", "two", "whole_module"):
        link = HERE / "torch_file" / (("hostile_" if name in ("single", "two", "whole_module") else "") + name)
        if not link.exists():
            link.symlink_to(os.path.relpath(GOLDEN / f"{name}.pt", link.parent))

    def part(name, record):
        with zipfile.ZipFile(GOLDEN / f"{name}.pt") as archive:
            return archive.read(f"{name}/{record}")

    source = (b'class Net(Module):\n  __parameters__ = ["w", "b", ]\n  __buffers__ = ["m", ]\n  w : Tensor\n'
              b'class Plain:\n  __parameters__ = ["w", ]\nclass Own(Module):\n  __parameters__ = []\n'
              b'  def __setstate__(self, state: Tensor) -> NoneType:\n    return None\n')
    tensor = (b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
              b"X\x03\x00\x00\x00cpuK\x06tQK\x00K\x02K\x03\x86K\x03K\x01\x86\x88ccollections\nOrderedDict\n)RtR")

    def text(value):
        return b"X" + struct.pack("<I", len(value)) + value

    def module(name, attributes):
        return b"c__torch__\n" + name + b"\n)\x81}(" + attributes + b"ub"

    def archive(pickle):
        return source + b"== \n\x80\x02" + pickle + b"."

    inner = module(b"Net", text(b"w") + tensor + text(b"b") + b"N" + text(b"m") + tensor)
    save("script_archive", "one", archive(inner))
    save("script_archive", "nested", archive(module(b"Net", text(b"head") + inner + text(b"w") + tensor)))
    save("script_archive", "tied", part("tied_script", "code/__torch__.py") + b"\n== \n" + part("tied_script", "data.pkl"))
    save("script_archive", "plain_class", archive(module(b"Net", text(b"a") + module(b"Plain", text(b"w") + tensor))))
    save("script_archive", "hostile_own_code", archive(module(b"Net", text(b"a") + b"c__torch__\nOwn\n)\x81" + tensor + b"b")))
    save("script_archive", "hostile_circle", archive(b"c__torch__\nNet\n)\x81q\x01}(" + text(b"a") + b"h\x01ub"))
    save("script_archive", "hostile_no_class", archive(module(b"Gone", b"")))
    save("script_archive", "hostile_number", archive(b"K\x01"))


def nested_calls():
    """Nine nested calls of _rebuild_from_type_v2; PyTorch writes only one."""
    content = b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\nq\x000(ccollections\nOrderedDict\nN)tq\x01"
    for _ in range(8):
        content += b"q\x010(h\x00Nh\x01t"
    save("pickle", "hostile_from_type_deep", content + b"q\x010h\x00h\x01R0}.")


def deepspeed_pickles():
    places = ["stage0/global_step3/mp_rank_00_model_states.pt", "stage1/global_step3/mp_rank_00_model_states.pt",
              "stage1/global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt",
              "stage2/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt",
              "stage3/global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt",
              "stage3/global_step3/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"]
    corpus = HERE / "deepspeed_checkpoint"

    def pickle_of(path):
        with zipfile.ZipFile(path) as archive:
            return archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))

    for i, place in enumerate(places):
        path = pathlib.Path(place)
        save("deepspeed_pickle", f"{path.parts[0]}_{path.stem}", bytes([i]) + pickle_of(corpus / place))
    for case in sorted(corpus.glob("hostile_*")):
        file = next(case.glob("*/*.pt"))
        which = [i for i, place in enumerate(places) if place.startswith(file.parent.name) and place.endswith(file.name)]
        if which:
            save("deepspeed_pickle", case.name, bytes([which[0]]) + pickle_of(file))


def tokenizers():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}
    vocabulary = {names[byte]: byte for byte in range(256)} | {"he": 256, "ll": 257, "hell": 258, "\u0120": 32}
    whole = {"version": "1.0", "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
             "added_tokens": [{"id": 259, "content": "<|endoftext|>", "lstrip": False, "special": True}],
             "model": {"type": "BPE", "vocab": vocabulary, "merges": ["h e", "l l", "he ll"]}}

    def save_changed(name, **changes):
        model = whole["model"] | changes.pop("model", {})
        save("tokenizer", name, json.dumps(whole | changes | {"model": model}, ensure_ascii=False))

    save_changed("words")
    # Most mutations hit a part that is not read, and the rest of the file stays valid.
    save_changed("long", post_processor={"type": "ByteLevel", "notes": ["ignored " * 10] * 500})
    save_changed("pairs", model={"merges": [["h", "e"], ["l", "l"]]})
    save_changed("hostile_merge", model={"merges": ["h x"]})
    save_changed("hostile_number", model={"vocab": vocabulary | {"he": 2**40}})
    save_changed("hostile_byte", model={"vocab": {name: i for name, i in vocabulary.items() if name != "h"}})
    save_changed("hostile_special", added_tokens=[{"id": 256, "content": "<|endoftext|>"}])
    save_changed("hostile_kind", pre_tokenizer={"type": "Metaspace"})


def requests():
    """What browsers and others send to the server of `lockstep report --follow`."""
    save("http_request", "browser", "GET /0123456789abcdef/ HTTP/1.1\r\nHost: 127.0.0.1:45123\r\nUser-Agent: Mozilla/5.0\r\n"
         "Accept: text/html,*/*;q=0.8\r\nAccept-Encoding: gzip\r\nConnection: keep-alive\r\n\r\n")
    save("http_request", "version", "GET /0123456789abcdef/version?now HTTP/1.1\r\nhost:\tlocalhost:45123 \t\r\n\r\n")
    save("http_request", "http_1_0", "HEAD / HTTP/1.0\r\n\r\n")
    save("http_request", "empty_host", "GET /a HTTP/1.1\r\nHost:\r\nHost: \t \r\n\r\n")
    save("http_request", "two_hosts", "GET /a?b?c HTTP/1.1\r\nHost: one\r\nHostess: no\r\nHOST: two\r\n\r\nbody\r\n")
    save("http_request", "no_field", "GET / HTTP/1.1\r\n\r\n\r\nHost")
    save("http_request", "hostile_one_word", "GET\r\n\r\n")
    save("http_request", "hostile_no_version", "GET / \r\nHost: a\r\n\r\n")
    save("http_request", "hostile_http_2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    save("http_request", "hostile_line_feed", "GET /a\n HTTP/1.1\r\nHost: a\r\n\r\n")
    save("http_request", "hostile_tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)))


def token_files():
    tokens = struct.pack("<40H", *(i * 811 % 50257 for i in range(40)))
    header = struct.pack("<256i", 20240520, 1, 40, *[0] * 253)
    save("token_file", "llm_c", header + tokens)
    save("token_file", "nano_gpt", tokens)
    save("token_file", "one_token", b"\x01\x00")
    save("token_file", "largest_tokens", b"\xff" * 16)
    save("token_file", "hostile_empty", b"")
    save("token_file", "hostile_odd", tokens + b"\x00")
    save("token_file", "hostile_header_only", header)
    save("token_file", "hostile_cut_header", header[:100])
    save("token_file", "hostile_cut_tokens", header + tokens[:-2])
    save("token_file", "hostile_version", struct.pack("<256i", 20240520, 2, 40, *[0] * 253) + tokens)
    save("token_file", "hostile_negative", struct.pack("<256i", 20240520, 1, -512, *[0] * 253))
    save("token_file", "hostile_wide", struct.pack("<256i", 20240801, 7, 20, *[0] * 253) + tokens)


if __name__ == "__main__":
    for make in (toml, answers, exported, rendezvous_bodies, images, tensor_files, archives, weights, nested_calls, deepspeed_pickles,
                 tokenizers, requests, token_files):
        make()
