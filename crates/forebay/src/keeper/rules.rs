//! The restart policy: what the keeper does after the server exits.

use std::time::Duration;

/// The exit code by which a server asks to be replaced by the program now at its path.
pub(crate) const UPGRADE_CODE: u8 = 83;
/// The exit code of a Rust program whose main thread panicked.
const PANIC_CODE: i32 = 101;
/// A server that exits sooner than this after it began to serve counts as an early exit: the cause
/// will likely recur at once.
const EARLY: Duration = Duration::from_millis(500);
/// The number of consecutive early exits after which one more makes the keeper give up.
const EARLY_EXITS_MAX: u32 = 8;
const DELAY_FIRST: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);

/// How a server exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    Code(i32),
    Signal(i32),
    /// The server could not be started, or its exit status is lost.
    Unknown,
}

/// One run of a server, from start to exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerRun {
    pub exit: Exit,
    /// How long it served clients; `None` if it never did.
    pub served: Option<Duration>,
    /// Whether the pool holds dirty data. Ignored unless the server exited with a code.
    pub is_dirty: bool,
}

/// The program to start as the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// The executable that the keeper itself runs.
    Own,
    /// The file now at the path that the keeper was started from.
    AtPath,
}

/// What the keeper does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Exit with this code.
    Exit(u8),
    /// Start another server after this delay.
    Restart(Duration),
    /// Stop restarting. If the pool is dirty, hold it until the operator decides.
    GiveUp,
}

/// The restart policy and its state between runs.
#[derive(Debug)]
pub(super) struct RestartPolicy {
    /// The program to start next.
    pub program: Program,
    /// The run in progress is the first of a new program.
    is_trial: bool,
    early_exits: u32,
}

impl RestartPolicy {
    pub(super) const fn new() -> Self {
        Self { program: Program::Own, is_trial: false, early_exits: 0 }
    }

    /// Resets the count of early exits.
    pub(super) const fn reset(&mut self) {
        self.early_exits = 0;
    }

    /// Decides what follows a run. A new program that exits before it serves is rolled back.
    pub(super) fn next_action(&mut self, run: ServerRun) -> Action {
        let was_trial = std::mem::take(&mut self.is_trial);
        // Even if it asks for an upgrade, which it could repeat forever.
        if was_trial && run.served.is_none() {
            self.program = Program::Own;
            return Action::Restart(Duration::ZERO);
        }
        if run.exit == Exit::Code(i32::from(UPGRADE_CODE)) {
            self.program = Program::AtPath;
            self.is_trial = true;
            return Action::Restart(Duration::ZERO);
        }
        match run.exit {
            Exit::Code(0) => return Action::Exit(0),
            // After an orderly failure, a restart is worthwhile only to save dirty data.
            Exit::Code(code) if code != PANIC_CODE && !run.is_dirty => {
                return Action::Exit(u8::try_from(code).unwrap_or(1));
            }
            Exit::Code(_) | Exit::Signal(_) | Exit::Unknown => {}
        }
        let is_early = run.served.is_none_or(|served| served < EARLY);
        self.early_exits = if is_early { self.early_exits + 1 } else { 0 };
        match self.early_exits {
            0 => Action::Restart(Duration::ZERO),
            count if count > EARLY_EXITS_MAX => Action::GiveUp,
            count => Action::Restart((DELAY_FIRST * (1 << (count - 1))).min(DELAY_MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Option<Duration> = Some(Duration::from_secs(60));

    fn run(exit: Exit, served: Option<Duration>, is_dirty: bool) -> ServerRun {
        ServerRun { exit, served, is_dirty }
    }

    #[test]
    fn each_exit_leads_to_the_documented_action() {
        let now = Action::Restart(Duration::ZERO);
        for (exit, served, is_dirty, action) in [
            (Exit::Code(0), LONG, false, Action::Exit(0)),
            (Exit::Code(0), LONG, true, Action::Exit(0)),
            (Exit::Code(1), None, false, Action::Exit(1)),
            (Exit::Code(2), LONG, false, Action::Exit(2)),
            (Exit::Code(1), LONG, true, now),
            (Exit::Code(1), None, true, Action::Restart(DELAY_FIRST)),
            (Exit::Code(101), LONG, false, now),
            (Exit::Signal(9), LONG, false, now),
            (Exit::Signal(6), LONG, true, now),
            (Exit::Signal(9), None, false, Action::Restart(DELAY_FIRST)),
            (Exit::Unknown, None, false, Action::Restart(DELAY_FIRST)),
            (Exit::Unknown, LONG, false, now),
            (Exit::Signal(9), Some(Duration::from_millis(10)), true, Action::Restart(DELAY_FIRST)),
        ] {
            let mut policy = RestartPolicy::new();
            let run = run(exit, served, is_dirty);
            assert_eq!(policy.next_action(run), action, "{run:?}");
            assert_eq!(policy.program, Program::Own);
        }
    }

    #[test]
    fn the_keeper_gives_up_after_repeated_early_exits() {
        let mut policy = RestartPolicy::new();
        let early = run(Exit::Signal(11), None, true);
        let mut delays = Duration::ZERO;
        for _ in 0..EARLY_EXITS_MAX {
            let Action::Restart(delay) = policy.next_action(early) else { panic!("too soon") };
            assert!(delay <= DELAY_MAX);
            delays += delay;
        }
        assert!(delays > Duration::from_secs(10), "a transient fault has time to clear");
        assert_eq!(policy.next_action(early), Action::GiveUp);
        policy.reset();
        assert_eq!(policy.next_action(early), Action::Restart(DELAY_FIRST));
        assert_eq!(
            policy.next_action(run(Exit::Signal(9), LONG, true)),
            Action::Restart(Duration::ZERO)
        );
        assert_eq!(
            policy.next_action(early),
            Action::Restart(DELAY_FIRST),
            "a long run resets the count"
        );
    }

    #[test]
    fn an_upgrade_that_never_serves_is_rolled_back() {
        let mut policy = RestartPolicy::new();
        let upgrade = run(Exit::Code(i32::from(UPGRADE_CODE)), LONG, true);
        let asks_for_another = Exit::Code(i32::from(UPGRADE_CODE));
        let failures = [Exit::Code(2), Exit::Code(0), Exit::Signal(4), Exit::Unknown];
        for failure in failures.into_iter().chain([asks_for_another]) {
            assert_eq!(policy.next_action(upgrade), Action::Restart(Duration::ZERO));
            assert_eq!(policy.program, Program::AtPath);
            assert_eq!(
                policy.next_action(run(failure, None, true)),
                Action::Restart(Duration::ZERO)
            );
            assert_eq!(policy.program, Program::Own);
        }
        assert_eq!(policy.next_action(upgrade), Action::Restart(Duration::ZERO));
        assert_eq!(
            policy.next_action(run(Exit::Signal(9), LONG, true)),
            Action::Restart(Duration::ZERO)
        );
        assert_eq!(policy.program, Program::AtPath, "it has served before");
    }
}
