"""`gossamer --install-completion`.

A module of its own: cyclopts loads `subprocess` and more for it, which no other command needs.
"""

from __future__ import annotations

from cyclopts.completion.install import create_install_completion_command

from gossamer.node.command_table import app

install = create_install_completion_command(app.install_completion, add_to_startup=True)
