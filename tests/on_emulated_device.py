"""The command line on an emulated CUDA device: ``python tests/on_emulated_device.py run --config FILE``.

The card fails when a file ``card-fails`` lies in the present folder, at the next batch.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import cuda_emulator

from graphtide.daemon.cli import main

if __name__ == "__main__":
    with cuda_emulator.emulated(), contextlib.ExitStack() as failing:
        from graphtide.partition.device_side import DeviceSide

        launch = DeviceSide.launch

        def launch_or_fail(side: DeviceSide, plan: Any) -> None:
            if Path("card-fails").exists():
                failing.enter_context(cuda_emulator.failing_card(0, quiet=True))
            launch(side, plan)

        vars_of_class: Any = DeviceSide
        vars_of_class.launch = launch_or_fail
        main()
