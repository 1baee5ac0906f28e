"""Training options: a field of :class:`TrainingOptions` is an option of the commands that train and a setting of a run.

``handful train``, ``grid`` and ``reproduce`` make their command line options of the fields, and ``config.json`` holds
them: a new option is one line here, and the line that uses it. Nothing here imports PyTorch, so that --help is fast.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args, get_type_hints


@dataclass(frozen=True)
class Help:
    """What the command line says of an option, and the smallest and the largest value that it takes."""

    text: str
    least: int | None = None
    most: int | None = None


@dataclass(frozen=True)
class RunOptions:
    """The training options that ``config.json`` holds under their own names."""

    learning_rate: Annotated[float, Help("Learning rate at the start of training.")] = 1e-3
    optimiser: Annotated[str, Help("adam, or sgd (Nesterov momentum 0.9).")] = "adam"
    schedule: Annotated[
        str,
        Help(
            "How the learning rate falls: step (to a tenth after four fifths of the episodes), cosine (to zero), "
            "constant, or halve:N (every N episodes)."
        ),
    ] = "step"
    weight_decay: Annotated[float, Help("Pulls weights towards zero; --decay-form says how.", least=0)] = 5e-4
    decay_form: Annotated[
        str,
        Help(
            "l2: a penalty in the gradient. decoupled: weights shrink by rate x decay in each step (as in AdamW). "
            "constant: by the decay alone, whatever the rate (as in TapNet's code)."
        ),
    ] = "l2"
    decay_on: Annotated[str, Help("The weights that decay: all, or convolutions only.")] = "all"
    precision: Annotated[str, Help("Of the embedder in training: float32, or bfloat16, about twice as fast.")] = (
        "float32"
    )
    episodes_per_step: Annotated[int, Help("Episodes that share a step of the optimiser.", 1, 10**6)] = 1
    augment: Annotated[bool, Help("Move and mirror training images at random: for photographs, not for letters.")] = (
        False
    )
    jitter: Annotated[
        float, Help("Change brightness, contrast and saturation of training images by up to this share.", 0, 1)
    ] = 0.0
    classifier_loss: Annotated[
        float, Help("Weight of a cosine classifier of all training classes, trained beside the episodes.", least=0)
    ] = 0.0
    rotation_loss: Annotated[
        float, Help("Weight of telling by how many quarter turns unlabelled training images were rotated.", least=0)
    ] = 0.0
    pseudo_label_loss: Annotated[
        float,
        Help("Weight of pseudo-labels: what a moving average of the model makes of unlabelled images.", least=0),
    ] = 0.0
    teacher_momentum: Annotated[
        float,
        Help("Share of its weights that this average keeps in a step; 1: it stays the classifier of --start.", 0, 1),
    ] = 0.999
    extra_unlabelled: Annotated[
        int, Help("Unlabelled training images of a step, for --rotation-loss and --pseudo-label-loss.", 1, 10**6)
    ] = 128
    backbone: Annotated[str, Help("Network that maps images to vectors: conv4 or resnet12.")] = "conv4"
    validate_every: Annotated[int, Help("Episodes between validations.", 1, 10**9)] = 500
    validation_episodes: Annotated[int, Help("Episodes of a validation.", 1, 10**6)] = 200


@dataclass(frozen=True)
class TrainingOptions(RunOptions):
    """All training options; those that are only here become options of the backbone."""

    average_pool: Annotated[bool, Help("2 x 2 average pool on the backbone, as for tieredImageNet.")] = False
    linear_output: Annotated[bool, Help("No ReLU after the last block of conv4: vectors may be negative.")] = False
    mirror: Annotated[
        bool, Help("In evaluation, conv4 looks at photographs from both sides: the mean of each and its mirror image.")
    ] = False
    whiten: Annotated[int, Help("Directions that the conv4 of --start has scaled by 'handful whiten'.", least=0)] = 0

    def run_options(self) -> dict[str, Any]:
        """What the settings of a run hold under their own names."""
        return {entry.name: getattr(self, entry.name) for entry in fields(RunOptions)}

    def backbone_options(self) -> dict[str, Any]:
        """The options of the backbone that are not its defaults."""
        ours = (entry for entry in fields(self) if entry.name not in {known.name for known in fields(RunOptions)})
        return {entry.name: getattr(self, entry.name) for entry in ours if getattr(self, entry.name) != entry.default}


@dataclass(frozen=True)
class Described:
    """A field of a class of options: its name, its type, its default, and what is said of it."""

    name: str
    kind: Any
    default: Any
    help: Help


def described(cls: type[RunOptions] = TrainingOptions) -> list[Described]:
    """The options of a class, in order."""
    hints = get_type_hints(cls, include_extras=True)
    return [
        Described(entry.name, get_args(hints[entry.name])[0], entry.default, get_args(hints[entry.name])[1])
        for entry in fields(cls)
    ]
