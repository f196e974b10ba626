//! What follows when the server has ended.

use std::time::Duration;

/// The code a server ends with that is to be followed by the program now at its path.
pub(crate) const UPGRADE_CODE: u8 = 83;
/// The code of a program whose main thread has panicked.
const PANIC_CODE: i32 = 101;
/// A server that dies sooner than this after it began to serve has done so for a reason that will
/// be there the next time, too.
const SHORT: Duration = Duration::from_millis(500);
/// Short lives in a row after which it is not started again.
const SHORT_LIVES_MAX: u32 = 8;
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How a server has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// By itself, with this code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// A server's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub ending: Ending,
    /// How long it served clients, if it came to that.
    pub served: Option<Duration>,
    /// Whether the pool holds what no disk has. Of no interest after a signal.
    pub is_dirty: bool,
}

/// Which program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// The one that the keeper itself runs.
    Own,
    /// The one that is at its path now.
    AtPath,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The keeper ends with this code.
    End(u8),
    /// Another server is started after a pause.
    Again(Duration),
    /// Servers die too soon. If the pool is dirty it is kept until somebody says what is to be
    /// done.
    GiveUp,
}

/// What is remembered from one life to the next.
#[derive(Debug)]
pub(super) struct Rules {
    /// What is started next.
    pub program: Program,
    /// The program at the path has been started for the first time.
    is_trial: bool,
    short_lives: u32,
}

impl Rules {
    pub(super) const fn new() -> Self {
        Self { program: Program::Own, is_trial: false, short_lives: 0 }
    }

    /// Begins to count anew.
    pub(super) const fn forgive(&mut self) {
        self.short_lives = 0;
    }

    /// What follows this life.
    pub(super) fn follow(&mut self, life: Life) -> Next {
        let was_trial = std::mem::take(&mut self.is_trial);
        if life.ending == Ending::Code(i32::from(UPGRADE_CODE)) {
            self.program = Program::AtPath;
            self.is_trial = true;
            return Next::Again(Duration::ZERO);
        }
        if was_trial && life.served.is_none() {
            self.program = Program::Own;
            return Next::Again(Duration::ZERO);
        }
        match life.ending {
            Ending::Code(0) => return Next::End(0),
            // What it could not do is worth another try only if something would be lost.
            Ending::Code(code) if code != PANIC_CODE && !life.is_dirty => {
                return Next::End(u8::try_from(code).unwrap_or(1));
            }
            Ending::Code(_) | Ending::Signal(_) => {}
        }
        let is_short = life.served.is_none_or(|served| served < SHORT);
        self.short_lives = if is_short { self.short_lives + 1 } else { 0 };
        match self.short_lives {
            0 => Next::Again(Duration::ZERO),
            count if count > SHORT_LIVES_MAX => Next::GiveUp,
            count => Next::Again((PAUSE_FIRST * (1 << (count - 1))).min(PAUSE_MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Option<Duration> = Some(Duration::from_secs(60));

    fn life(ending: Ending, served: Option<Duration>, is_dirty: bool) -> Life {
        Life { ending, served, is_dirty }
    }

    #[test]
    fn what_follows_an_end() {
        let now = Next::Again(Duration::ZERO);
        for (ending, served, is_dirty, next) in [
            (Ending::Code(0), LONG, false, Next::End(0)),
            (Ending::Code(0), LONG, true, Next::End(0)),
            (Ending::Code(1), None, false, Next::End(1)),
            (Ending::Code(2), LONG, false, Next::End(2)),
            (Ending::Code(1), LONG, true, now),
            (Ending::Code(1), None, true, Next::Again(PAUSE_FIRST)),
            (Ending::Code(101), LONG, false, now),
            (Ending::Signal(9), LONG, false, now),
            (Ending::Signal(6), LONG, true, now),
            (Ending::Signal(9), None, false, Next::Again(PAUSE_FIRST)),
            (Ending::Signal(9), Some(Duration::from_millis(10)), true, Next::Again(PAUSE_FIRST)),
        ] {
            let mut rules = Rules::new();
            let life = life(ending, served, is_dirty);
            assert_eq!(rules.follow(life), next, "{life:?}");
            assert_eq!(rules.program, Program::Own);
        }
    }

    #[test]
    fn servers_that_die_too_soon_are_given_up() {
        let mut rules = Rules::new();
        let short = life(Ending::Signal(11), None, true);
        let mut pauses = Duration::ZERO;
        for _ in 0..SHORT_LIVES_MAX {
            let Next::Again(pause) = rules.follow(short) else { panic!("too soon") };
            assert!(pause <= PAUSE_MAX);
            pauses += pause;
        }
        assert!(pauses > Duration::from_secs(10), "what passes by itself may take a while");
        assert_eq!(rules.follow(short), Next::GiveUp);
        rules.forgive();
        assert_eq!(rules.follow(short), Next::Again(PAUSE_FIRST));
        assert_eq!(rules.follow(life(Ending::Signal(9), LONG, true)), Next::Again(Duration::ZERO));
        assert_eq!(rules.follow(short), Next::Again(PAUSE_FIRST), "a long life counts anew");
    }

    #[test]
    fn a_program_that_does_not_come_to_serve_is_followed_by_the_one_before() {
        let mut rules = Rules::new();
        let upgrade = life(Ending::Code(i32::from(UPGRADE_CODE)), LONG, true);
        for failure in [Ending::Code(2), Ending::Code(0), Ending::Signal(4)] {
            assert_eq!(rules.follow(upgrade), Next::Again(Duration::ZERO));
            assert_eq!(rules.program, Program::AtPath);
            assert_eq!(rules.follow(life(failure, None, true)), Next::Again(Duration::ZERO));
            assert_eq!(rules.program, Program::Own);
        }
        assert_eq!(rules.follow(upgrade), Next::Again(Duration::ZERO));
        assert_eq!(rules.follow(life(Ending::Signal(9), LONG, true)), Next::Again(Duration::ZERO));
        assert_eq!(rules.program, Program::AtPath, "it has served, and does so again");
    }
}
