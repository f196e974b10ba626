//! Whether holding writes through the cache back pays: some go with it and some without.

/// Writes of a trial with holding back, and as many without.
const TRIAL_WRITES: u32 = 256;
/// Writes from one trial to the next, at first and at most: twice as many each time that nothing
/// was gained.
const PAUSE_MIN: u32 = 4 << 10;
const PAUSE_MAX: u32 = 64 << 10;
/// Milliseconds of a trial that are chance: of each write, the clock may count one too many.
const CHANCE_MS: u64 = 32;

/// Whether writes of a volume are held back. That is tried, with some writes and without, and done
/// where it saves an eighth of their time.
#[derive(Debug)]
pub(crate) struct Trial {
    stage: Stage,
    /// Moves with the stage.
    round: u32,
    /// Writes of the stage that have ended, and how long they took in milliseconds.
    writes: u32,
    took_ms: u64,
    /// Writes until the next trial.
    pause: u32,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    With,
    /// How long writes took with it.
    Without(u64),
    Settled {
        holds: bool,
    },
}

impl Default for Trial {
    fn default() -> Self {
        Self { stage: Stage::With, round: 0, writes: 0, took_ms: 0, pause: PAUSE_MIN }
    }
}

impl Trial {
    /// The round that a write is part of which begins now.
    pub(crate) const fn round(&self) -> u32 {
        self.round
    }

    pub(crate) const fn holds(&self) -> bool {
        match self.stage {
            Stage::With => true,
            Stage::Without(_) => false,
            Stage::Settled { holds } => holds,
        }
    }

    /// A write that began in a round has ended.
    pub(crate) const fn ended(&mut self, round: u32, took_ms: u64) {
        if round != self.round {
            return;
        }
        self.writes += 1;
        self.took_ms += took_ms;
        let stage = match self.stage {
            Stage::With if self.writes >= TRIAL_WRITES => Stage::Without(self.took_ms),
            Stage::Without(with_ms) if self.writes >= TRIAL_WRITES => {
                let without_ms = self.took_ms;
                let holds = with_ms + without_ms / 8 + CHANCE_MS < without_ms;
                self.pause = if holds {
                    PAUSE_MIN
                } else {
                    if self.pause < PAUSE_MAX { self.pause * 2 } else { PAUSE_MAX }
                };
                Stage::Settled { holds }
            }
            Stage::Settled { .. } if self.writes >= self.pause => Stage::With,
            _ => return,
        };
        (self.stage, self.writes, self.took_ms) = (stage, 0, 0);
        self.round = self.round.wrapping_add(1);
    }
}
