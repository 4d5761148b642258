"""Requests to `gossamer serve` that ask for what it does not have are refused, and not ignored."""

from __future__ import annotations

import json

import pytest

from gossamer.node.serving.questions import QuestionError, read_chat, read_completion


@pytest.mark.parametrize("logprobs", [0, 5, True])
def test_a_completion_with_the_probabilities_of_its_tokens_is_refused(logprobs: object) -> None:
    """0 asks for those of the chosen tokens alone."""
    body = json.dumps({"prompt": "A text", "logprobs": logprobs}).encode()
    with pytest.raises(QuestionError, match="logprobs is not supported here"):
        read_completion(body)


@pytest.mark.parametrize("logprobs", [None, False])
def test_a_request_that_wants_no_probabilities_is_answered(logprobs: object) -> None:
    read_completion(json.dumps({"prompt": "A text", "logprobs": logprobs}).encode())
    messages = [{"role": "user", "content": "A text"}]
    read_chat(json.dumps({"messages": messages, "logprobs": logprobs}).encode())
