"""The schema of a graph: the needs of a model, recorded with its weights and compared with other graphs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

MOST_NAMED = 4  # differences that an error lists
OF_NUMBERS = ("time_scale", "clock_scales", "scales")  # values that do not say what outputs stand for


@dataclass
class Schema:
    """needs: texts that must be the same on another graph, by what they describe; values: what training counted in the
    graph and the model keeps, such as the names of its classes. JSON holds both."""

    needs: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Write the schema as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read what ``to_json`` wrote. Raises ValueError for anything else."""
        try:
            return cls(**json.loads(text))
        except (TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"not a schema: {error}") from error

    def has_outputs_of(self, other: Schema | None) -> bool:
        """Whether outputs stand for the same classes and edge types as in a model with the ``other`` schema."""
        if other is None:
            return False
        mine, its = ({k: v for k, v in s.values.items() if k not in OF_NUMBERS} for s in (self, other))
        return mine == its

    def refuse(self, other: Schema) -> None:
        """Raise ValueError that names what another graph, described by ``other``, has otherwise."""
        names = dict.fromkeys([*self.needs, *other.needs])
        different = [name for name in names if self.needs.get(name) != other.needs.get(name)]
        if different:
            listed = "; ".join(
                f"{name}: {self.needs.get(name, 'none')}, this graph has {other.needs.get(name, 'none')}"
                for name in different[:MOST_NAMED]
            )
            more = f"; and {len(different) - MOST_NAMED} more" if len(different) > MOST_NAMED else ""
            raise ValueError(f"the model was trained on a graph with {listed}{more}: convert the graph as that one was")
