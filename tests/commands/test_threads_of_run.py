"""The number of threads of a resumed run."""

from recmix.commands import threads


def test_a_torn_line_of_the_log_hides_no_other_line(tmp_path):
    lines = ['{"event": "start", "threads": 3}', '{"event": "start", "thr', "[" * 10_000]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    assert threads._threads_of_run(["train", "--resume", "--out", str(tmp_path)]) == 3
    (tmp_path / "log.jsonl").write_text('{"event": "start", "threads": true}\n')
    assert threads._threads_of_run([f"--out={tmp_path}"]) is None
    (tmp_path / "log.jsonl").write_text('{"event": "start", "threads": 1000000}\n')
    assert threads._threads_of_run([f"--out={tmp_path}"]) is None


def test_first_stage_has_its_own_log(tmp_path):
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "log.jsonl").write_text('{"event": "start", "threads": 2}\n')
    assert threads._threads_of_run(["--out", str(tmp_path)]) == 2
