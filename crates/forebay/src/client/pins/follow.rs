//! `forebay pin --follow`: keeps files pinned while they move and grow.
//!
//! The files are mapped again every few seconds. Their new ranges are pinned. Ranges that they no
//! longer use are unpinned if this command pinned them: ranges that were pinned before belong to
//! the operator. Pins that the server has lost, by a restart, are set again.

use super::file::{Target, locate_again};
use super::{Files, pinned_ranges, unpin};
use crate::report::{print, sentence, warn};
use crate::signals::Signals;
use anyhow::Context;
use forebay_api::{BlockingClient, ClientError, ErrorKind, VolumeStatus};
use forebay_types::PinnedRanges;
use std::time::Duration;

/// What one round changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FollowStep {
    unpin: PinnedRanges,
    pin: PinnedRanges,
}

/// The ranges that this command has pinned.
#[derive(Debug, Default)]
struct Own(PinnedRanges);

impl Own {
    /// The changes after which the `wanted` ranges are pinned. `pinned` are the ranges that the
    /// server has pinned now, in a volume of this size. Ranges that are neither wanted nor pinned
    /// are forgotten: if they are pinned later, the operator pinned them.
    fn step(
        &mut self,
        wanted: &PinnedRanges,
        pinned: &PinnedRanges,
        size_bytes: u64,
    ) -> FollowStep {
        let without = |from: &PinnedRanges, others: &PinnedRanges| from.without(others, size_bytes);
        let stale = without(&self.0, wanted);
        let unpinned_already = without(&stale, pinned);
        self.0 = without(&self.0, &unpinned_already);
        let unpin = without(&stale, &unpinned_already);
        FollowStep { unpin, pin: without(wanted, pinned) }
    }
}

/// Why a round has failed.
enum Trouble {
    /// The files can no longer be followed.
    Over(anyhow::Error),
    /// The next round may succeed.
    Now(anyhow::Error),
}

/// Follows the files until a signal, or until one of them is gone. Then everything that this
/// command pinned is unpinned.
///
/// # Errors
/// The files cannot be pinned at first, or one of them is gone.
pub(super) fn follow(
    client: &BlockingClient,
    target: Target,
    files: Files,
    seconds: u64,
) -> anyhow::Result<()> {
    let waiting = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _context = waiting.enter();
        Signals::listen().context("cannot handle signals")?
    };
    let interval = Duration::from_secs(seconds);
    let mut follower = Follower { client, target, files, own: Own::default() };
    // Files that cannot be pinned now are refused, as without `--follow`.
    let wanted = follower.files.ranges();
    if let Err(Trouble::Over(error) | Trouble::Now(error)) = follower.apply(&wanted) {
        return Err(error);
    }
    let mut reported = String::new();
    let ended = loop {
        let signal = waiting
            .block_on(async { tokio::time::timeout(interval, signals.next()).await.is_ok() });
        if signal {
            break Ok(());
        }
        match follower.round() {
            Ok(()) => reported.clear(),
            Err(Trouble::Over(error)) => break Err(error),
            Err(Trouble::Now(error)) => {
                // Each cause is reported once.
                let text = format!("not followed at the moment: {}", sentence(&error));
                if text != reported {
                    warn(&text);
                    reported = text;
                }
            }
        }
    };
    follower.release()?;
    ended
}

struct Follower<'a> {
    client: &'a BlockingClient,
    target: Target,
    files: Files,
    own: Own,
}

impl Follower<'_> {
    /// Maps the files again, and moves the pins.
    fn round(&mut self) -> Result<(), Trouble> {
        for (path, device, map) in self.files.iter_mut() {
            *map = locate_again(path, &self.target, *device).map_err(Trouble::Over)?;
        }
        let wanted = self.files.ranges();
        self.apply(&wanted)
    }

    /// Pins these ranges, and unpins others that this command has pinned.
    fn apply(&mut self, wanted: &PinnedRanges) -> Result<(), Trouble> {
        let (name, size_bytes) = (self.target.name.clone(), self.target.size_bytes);
        let volume = self.client.volume(&name).map_err(trouble)?;
        let step = self.own.step(wanted, &pinned_ranges(&volume), size_bytes);
        if step == FollowStep::default() {
            return Ok(());
        }
        // Unpin first, so that the pins of a file that has moved never count twice.
        let mut after = volume;
        if !step.unpin.is_empty() {
            after = unpin(self.client, &name, &step.unpin).map_err(trouble)?;
        }
        self.own.0 = self.own.0.without(&self.own.0.without(wanted, size_bytes), size_bytes);
        if !step.pin.is_empty() {
            let request = forebay_control::pin_request(&step.pin);
            after = self.client.pin_volume(&name, &request).map_err(trouble)?;
            self.own.0 = self.own.0.with(&step.pin);
        }
        report(&after).map_err(Trouble::Over)
    }

    /// Unpins everything that this command has pinned.
    fn release(&mut self) -> anyhow::Result<()> {
        let volume = match self.client.volume(&self.target.name) {
            // Without a server or the volume, nothing is pinned.
            Err(ClientError::NotRunning { .. }) => return Ok(()),
            Err(ClientError::Refused(problem)) if problem.kind == ErrorKind::UnknownVolume => {
                return Ok(());
            }
            found => found?,
        };
        let nothing = PinnedRanges::default();
        let step = self.own.step(&nothing, &pinned_ranges(&volume), self.target.size_bytes);
        if step.unpin.is_empty() {
            return Ok(());
        }
        report(&unpin(self.client, &self.target.name, &step.unpin)?)
    }
}

fn report(volume: &VolumeStatus) -> anyhow::Result<()> {
    print(&super::sentence(volume))
}

/// Decides whether an error of the server ends the command. A restart of the server, or ranges that
/// are too large at present, do not end it.
fn trouble(error: ClientError) -> Trouble {
    match error {
        ClientError::Refused(problem) if problem.kind == ErrorKind::UnknownVolume => {
            Trouble::Over(problem.into())
        }
        ClientError::NotAllowed { .. } => Trouble::Over(error.into()),
        _ => Trouble::Now(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::{ByteRange, LINE_BYTES};

    const SIZE: u64 = 100 * LINE_BYTES;

    fn pins(ranges: &[(u64, u64)]) -> PinnedRanges {
        let mut pins = PinnedRanges::default();
        for &(first, lines) in ranges {
            pins.add(ByteRange::new(first * LINE_BYTES, lines * LINE_BYTES));
        }
        pins
    }

    #[test]
    fn a_round_pins_what_is_missing_and_unpins_only_its_own() {
        for (own, wanted, pinned, unpinned, added) in [
            // The first round: line 1 was pinned by the operator.
            (vec![], vec![(0, 4)], vec![(1, 1)], vec![], vec![(0, 1), (2, 2)]),
            // Nothing has moved.
            (vec![(0, 1), (2, 2)], vec![(0, 4)], vec![(0, 4)], vec![], vec![]),
            // The file has moved: the operator's line stays.
            (vec![(0, 1), (2, 2)], vec![(8, 4)], vec![(0, 4)], vec![(0, 1), (2, 2)], vec![(8, 4)]),
            // It has grown and lost its middle.
            (vec![(0, 6)], vec![(0, 2), (4, 6)], vec![(0, 6)], vec![(2, 2)], vec![(6, 4)]),
            // The server was restarted without pins.
            (vec![(0, 4)], vec![(2, 4)], vec![], vec![], vec![(2, 4)]),
            // The operator has unpinned a part, which is pinned again.
            (vec![(0, 4)], vec![(0, 4)], vec![(0, 2)], vec![], vec![(2, 2)]),
            // The end.
            (vec![(0, 4)], vec![], vec![(0, 2), (9, 1)], vec![(0, 2)], vec![]),
        ] {
            let step = Own(pins(&own)).step(&pins(&wanted), &pins(&pinned), SIZE);
            let expected = FollowStep { unpin: pins(&unpinned), pin: pins(&added) };
            assert_eq!(step, expected, "{own:?} {wanted:?} {pinned:?}");
        }
        let step = Own::default().step(&pins(&[(0, 4)]), &PinnedRanges::all(), SIZE);
        assert_eq!(step, FollowStep::default(), "the whole volume is pinned");
    }

    #[test]
    fn a_range_that_the_operator_unpinned_and_pinned_again_is_the_operators() {
        let (nothing, range) = (pins(&[]), pins(&[(0, 4)]));
        let mut own = Own(range.clone());
        // The file has left the range, which the operator unpins before the next round.
        assert_eq!(own.step(&nothing, &nothing, SIZE), FollowStep::default());
        assert_eq!(own.step(&nothing, &range, SIZE), FollowStep::default());
    }
}
