"""`LoRARequest`: which adapter a request wants. Plain data; a plugin that serves adapters reads it."""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter by name; `llm.generate(..., lora_request=LoRARequest("sql", 1, "/adapters/sql"))`."""

    lora_name: str
    """What people call it."""
    lora_int_id: int
    """From 1 on, another one for each adapter."""
    lora_path: str = ""
    """The folder it lies in, or a name that a plugin knows."""
    base_model_name: str | None = None
    load_inplace: bool = False
    """Read it anew, under a name that is known."""

    def __post_init__(self) -> None:
        """Raise `InvalidRequest` for what names no adapter."""
        if not isinstance(self.lora_name, str) or not self.lora_name:
            raise InvalidRequest("lora_name", f"must be a name, not {self.lora_name!r:.100}.")
        if type(self.lora_int_id) is not int or self.lora_int_id < 1:
            raise InvalidRequest(
                "lora_int_id", f"must be a number from 1 on, not {self.lora_int_id!r:.100}."
            )
        if not isinstance(self.lora_path, str) or not self.lora_path:
            raise InvalidRequest("lora_path", "must name the folder of the adapter.")

    @property
    def name(self) -> str:
        """What people call it."""
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        """Its number."""
        return self.lora_int_id

    @property
    def path(self) -> str:
        """The folder it lies in."""
        return self.lora_path
