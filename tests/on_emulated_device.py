"""The command line on an emulated CUDA device: ``python tests/on_emulated_device.py run --config FILE``.

The card fails when a file ``card-fails`` lies in the present folder, at the next batch; with ``run-fails``, when a
program is run there for a request. A file ``rows-fit`` there says how many bytes rows could hold on it, for
whoever decides which rows move. With a file ``host-waits`` there at the start the host's rows take batches when
they are needed, and never by themselves.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import cuda_emulator

from graphtide.daemon.cli import main
from graphtide.daemon.engine.rebalancing import Room

if __name__ == "__main__":
    with cuda_emulator.emulated(), contextlib.ExitStack() as failing:
        from graphtide.daemon.contents import Contents
        from graphtide.partition.device_side import DeviceSide

        launch = DeviceSide.launch

        def launch_or_fail(side: DeviceSide, plan: Any) -> None:
            if Path("card-fails").exists():
                failing.enter_context(cuda_emulator.failing_card(0, quiet=True))
            launch(side, plan)

        if Path("host-waits").exists():
            from graphtide.partition import whole

            vars_of_module = whole
            vars_of_module.SECONDS_MAX = 3600.0
            vars_of_module.Behind.begin = lambda _: True

        from graphtide.compute.device.program import DeviceProgram

        start_there = DeviceProgram.start_there

        def start_or_fail(program: DeviceProgram, graph: Any) -> Any:
            if Path("run-fails").exists():
                failing.enter_context(cuda_emulator.failing_card(0, quiet=True))
            return start_there(program, graph)

        from graphtide.daemon import again
        from graphtide.gpma.device.card import require_any

        vars_of_module: Any = again
        vars_of_module.require_device = require_any  # a process of its own would know nothing of the emulation

        vars_of_class: Any = DeviceProgram
        vars_of_class.start_there = start_or_fail

        room = Contents.room

        def room_or_told(contents: Contents) -> Room | None:
            found, told = room(contents), Path("rows-fit")
            if found is None or not told.exists():
                return found
            held = Path("rows-held.new")
            held.write_text(str(found.held))
            held.rename("rows-held")
            return Room(found.held, int(told.read_text()))

        vars_of_class = DeviceSide
        vars_of_class.launch = launch_or_fail
        vars_of_class = Contents
        vars_of_class.room = room_or_told
        main()
