"""Change valid files at random: bytes of any file, and values of files with a known structure."""

import copy
import io
import json
import random
import struct
import zipfile

VALUES = [
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, 1e-320),
    *(float("nan"), float("inf"), "", "x", "\0", "../x", "vae", "1", "é" * 50, "x" * 5000, "\ud800"),
    *([], {}, [0], [[]], [1, 2], [None], {"": None}, {"a": {"b": [1]}}, [10**9] * 3, [0, -1]),
]
INTERESTING = [0, 1, 0x20, 0x22, 0x2C, 0x7B, 0x7F, 0x80, 0xFF]
NUMBERS = ["0", "-1", "4294967295", "99999999999", "1e400", "'O'", "'V8'", "'<U99999999'", "True", "()"]


def change_bytes(content: bytes, choose: random.Random) -> bytes:
    """Make one to eight small changes of bytes."""
    found = bytearray(content)
    for _ in range(choose.choice([1, 1, 1, 2, 3, 8])):
        at = choose.randrange(len(found) + 1)
        near = min(at, choose.randrange(200))  # headers are at the start
        at = choose.choice([at, near])
        length = choose.choice([1, 2, 4, 8, choose.randrange(1, 64)])
        kind = choose.randrange(7)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << choose.randrange(8)
        elif kind == 1 and at < len(found):
            found[at] = choose.choice(INTERESTING)
        elif kind == 2:
            del found[at : at + length]
        elif kind == 3:
            found[at:at] = choose.randbytes(length)
        elif kind == 4:
            found[at:at] = found[at : at + length]
        elif kind == 5:
            word = struct.pack(choose.choice("<>") + "I", choose.choice([0, 2**31, 2**32 - 1, 2**16, 7]))
            found[at : at + 4] = word
        else:
            del found[choose.randrange(len(found) + 1) :]
    return bytes(found)


def change_value(content, choose: random.Random):
    """Replace, remove or add values somewhere in nested lists and dicts."""
    content = copy.deepcopy(content)
    for _ in range(choose.choice([1, 1, 2, 4])):
        places = [(None, None), *_places(content)]
        inside, key = choose.choice(places)
        value = copy.deepcopy(choose.choice([*VALUES, content]) if choose.random() < 0.9 else [[]])
        if inside is None:
            if choose.random() < 0.1:
                content = value
        elif choose.random() < 0.15:
            del inside[key]
        elif choose.random() < 0.15 and isinstance(inside, dict):
            inside[choose.choice(["x", "", "method", "0", "format"])] = inside.pop(key)
        else:
            inside[key] = value
    return content


def _places(content):
    if not isinstance(content, dict | list):
        return
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        yield content, key
        yield from _places(value)


def change_json(content: bytes, choose: random.Random) -> bytes:
    """Change values of a JSON file, sometimes bytes; sometimes nest it deeply."""
    if choose.random() < 0.2:
        return change_bytes(content, choose)
    if choose.random() < 0.02:
        return b"[" * choose.choice([10, 10**5]) + content
    text = json.dumps(change_value(json.loads(content), choose))
    return text.encode("utf-8", "surrogatepass")


def change_zip(content: bytes, choose: random.Random) -> bytes:
    """Change the members of a zip file and pack them again with right check sums, or its bytes."""
    if choose.random() < 0.4:
        return change_bytes(content, choose)
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        for member in old.infolist():
            inside, name = old.read(member), member.filename
            if choose.random() < 0.5:
                inside = change_npy(inside, choose)
            if choose.random() < 0.1:
                name = choose.choice(["../x.npy", "x_val.npy", "x_train.a.npy", "a/b.png", name * 50])
            if choose.random() > 0.1:
                new.writestr(name, inside, choose.choice([0, 8, 8, 12]))
    return file.getvalue()


def change_npy(content: bytes, choose: random.Random) -> bytes:
    """Change the text of the header of an .npy file, or bytes."""
    end = content.find(b"\n", 10)
    if choose.random() < 0.5 or end < 0 or not content.startswith(b"\x93NUMPY"):
        return change_bytes(content, choose)
    header = content[10:end].decode("latin1").rstrip()
    words = header.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split(" ")
    words[choose.randrange(len(words))] = choose.choice([*NUMBERS, "", "(", "[" * 300])
    header = "".join(words) + "\n"
    return content[:8] + struct.pack("<H", len(header)) + header.encode("latin1") + content[end + 1 :]


def change_csv(content: bytes, choose: random.Random) -> bytes:
    """Change cells of a CSV file, or bytes."""
    if choose.random() < 0.4:
        return change_bytes(content, choose)
    cells = [line.split(",") for line in content.decode().splitlines()]
    for _ in range(choose.randrange(1, 4)):
        line = choose.choice(cells)
        line[choose.randrange(len(line))] = choose.choice(
            ["", "nan", "inf", "-1e400", '"', "x", "1_0", "0x1", "٣", "\0", "1" * 5000, ",", "1;2", "\r"]
        )
    return "\n".join(",".join(line) for line in cells).encode()


def change_toml(content: bytes, choose: random.Random) -> bytes:
    """Replace words of a TOML file, or bytes."""
    if choose.random() < 0.3:
        return change_bytes(content, choose)
    lines = content.decode().splitlines()
    for _ in range(choose.randrange(1, 4)):
        at = choose.randrange(len(lines))
        key, equals, _ = lines[at].partition("=")
        values = ["0", "-1", "[]", "{}", '""', "'x'", "true", "1e400", "nan", "[1, 2]", "9" * 30]
        values += [
            "1979-05-27",
            "[[]]",
            '["vae"]',
            "{ a = 1 }",
            "99999999",
            "0.5",
            '"../x"',
            "[[1], [2]]",
        ]
        if equals and choose.random() < 0.8:
            lines[at] = f"{key}= {choose.choice(values)}"
        elif choose.random() < 0.5:
            del lines[at]
        else:
            lines.insert(at, choose.choice([*lines, "[methods]", "[[columns]]", "x = 1", "[budget.x]"]))
        lines = lines or [""]
    return "\n".join(lines).encode()
