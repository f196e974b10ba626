//! Measures whether holding back writes through the cache saves time on a volume's disk.
//!
//! A trial times some writes with holding back and as many without. Holding back stays on until the
//! next trial if it saves more than an eighth of the time.

/// Writes timed with holding back, and again without.
const TRIAL_WRITES: u32 = 256;
/// The minimum and maximum number of writes between two trials. The pause doubles each time a trial
/// finds no gain, and returns to the minimum after a gain.
const PAUSE_MIN: u32 = 4 << 10;
const PAUSE_MAX: u32 = 64 << 10;
/// A gain of up to this many milliseconds over a trial may be chance: each time is measured to one
/// millisecond, and most of these errors cancel out.
const CHANCE_MS: u64 = 32;

/// The trial of a volume.
#[derive(Debug)]
pub(crate) struct Trial {
    stage: TrialStage,
    /// The number of the stage, so that a write that began in an earlier one is not counted.
    round: u32,
    /// Writes completed in this stage, and the sum of their times in milliseconds.
    writes: u32,
    took_ms: u64,
    /// Writes between this trial and the next.
    pause: u32,
}

#[derive(Clone, Copy, Debug)]
enum TrialStage {
    With,
    /// The sum of the times with holding back, in milliseconds.
    Without(u64),
    Decided {
        holds: bool,
    },
}

impl Default for Trial {
    fn default() -> Self {
        Self { stage: TrialStage::With, round: 0, writes: 0, took_ms: 0, pause: PAUSE_MIN }
    }
}

impl Trial {
    /// The round to record in a write that begins now.
    pub(crate) const fn round(&self) -> u32 {
        self.round
    }

    pub(crate) const fn holds(&self) -> bool {
        match self.stage {
            TrialStage::With => true,
            TrialStage::Without(_) => false,
            TrialStage::Decided { holds } => holds,
        }
    }

    /// Counts a completed write of `round`.
    pub(crate) const fn record(&mut self, round: u32, took_ms: u64) {
        if round != self.round {
            return;
        }
        self.writes += 1;
        self.took_ms += took_ms;
        let stage = match self.stage {
            TrialStage::With if self.writes >= TRIAL_WRITES => TrialStage::Without(self.took_ms),
            TrialStage::Without(with_ms) if self.writes >= TRIAL_WRITES => {
                let without_ms = self.took_ms;
                let holds = with_ms + without_ms / 8 + CHANCE_MS < without_ms;
                self.pause = if holds {
                    PAUSE_MIN
                } else if self.pause < PAUSE_MAX {
                    self.pause * 2
                } else {
                    PAUSE_MAX
                };
                TrialStage::Decided { holds }
            }
            TrialStage::Decided { .. } if self.writes >= self.pause => TrialStage::With,
            _ => return,
        };
        (self.stage, self.writes, self.took_ms) = (stage, 0, 0);
        self.round = self.round.wrapping_add(1);
    }
}
