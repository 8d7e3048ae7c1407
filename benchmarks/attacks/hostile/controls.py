"""Controls that show that the bench notices harm: an app that does none, and one that does what nothing can prevent."""

from benchmarks.attacks.hostile.app import UNCHANGED, App, attack


@attack("nothing: an honest run", may_complete=UNCHANGED)
def harmless(app: App) -> None:
    app.run()


@attack("a process writes to a file of its own user", may_complete=UNCHANGED)
def writes_outside(app: App) -> None:
    app.run()
    (app.canary / "ssh-key").write_text("planted\n", encoding="utf-8")


@attack("an attack that fails before it is carried out", may_complete=UNCHANGED)
def fails_early(app: App) -> None:
    app.run()
    raise SystemExit(0)
