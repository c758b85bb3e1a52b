import asyncio
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from weightsync.errors import Invalid
from weightsync.rl.graders.judge import Dimension, Judge, Rubric
from weightsync.rl.graders.retry import Patience, graded
from weightsync.rl.records import Outcome

RUBRIC = Rubric({"right": Dimension("is it right", 3.0, required=True), "short": Dimension("is it short")})
FAST = Patience(attempts=4, limit_s=5.0, longest_wait_s=0.0)


@contextmanager
def server(*answers):
    """Answers one after another: text of a model, or a status."""
    left, seen = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            seen.append((self.path, self.headers.get("Authorization"), json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            answer = left.pop(0)
            body = json.dumps({"choices": [{"message": {"content": answer}}]}).encode() if isinstance(answer, str) else b"no"
            self.send_response(200 if isinstance(answer, str) else answer)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}/v1", seen
        finally:
            listening.shutdown()
            thread.join()


def grade(*answers, patience=FAST):
    with server(*answers) as (url, seen):
        judge = Judge(url, "m", token="t")
        return asyncio.run(graded(lambda: judge.grade(RUBRIC, "2+2?", "4"), patience)), seen


def test_dimensions_are_scored_apart():
    found, seen = grade('Let me see {"x": 1}. {"right": 1, "short": 0.5}')
    assert found.outcome is Outcome.GRADED
    assert found.scores == {"right": 1.0, "short": 0.5}
    assert found.reward == pytest.approx(0.875)
    ((path, token, body),) = seen
    assert path == "/v1/chat/completions"
    assert token == "Bearer t"
    assert "is it short" in body["messages"][0]["content"]
    assert json.loads(body["messages"][1]["content"]) == {"task": "2+2?", "answer": "4"}


def test_a_required_dimension_that_is_missed_makes_it_worthless():
    found, _ = grade('{"right": 0, "short": 1}')
    assert (found.outcome, found.reward, found.why) == (Outcome.GRADED, 0.0, "required: right")


@pytest.mark.parametrize("bad", ["I think it is fine", '{"right": 1}', '{"right": 2, "short": 1}', '{"right": "1", "short": 1}', 503, 429])
def test_answers_that_are_no_grade_are_asked_for_again(bad):
    found, seen = grade(bad, '{"right": true, "short": 1}', '{"right": 1, "short": 1}')
    assert (found.outcome, found.reward) == (Outcome.GRADED, 1.0)
    assert len(seen) == 3


def test_a_judge_that_never_answers_is_an_infrastructure_error_and_no_zero():
    found, _ = grade(500, 500, 500, 500)
    assert found.outcome is Outcome.INFRA_ERROR
    judge = Judge("http://127.0.0.1:9", "m", timeout_s=1.0)
    assert asyncio.run(graded(lambda: judge.grade(RUBRIC, "t", "a"), FAST)).outcome is Outcome.INFRA_ERROR


def test_rubrics_and_addresses_that_mean_nothing_are_refused():
    for dimensions in ({}, {"a": Dimension("x", 0.0)}, {"a": Dimension("x", -1.0)}):
        with pytest.raises(Invalid):
            Rubric(dimensions)
    with pytest.raises(Invalid):
        Judge("file:///etc/passwd", "m")
