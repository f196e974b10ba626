//! Sector masks against an oracle: random small reads and writes over a few lines.

use crate::rig::{Rig, VOLUME};
use forebay_types::Mode;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Write { sector: u64, count: u64 },
    WriteStaged { sector: u64, count: u64 },
    Abandon { sector: u64, count: u64 },
    Read { sector: u64, count: u64 },
    Zero { sector: u64, count: u64 },
    Flush,
    SetMode(Mode),
}

/// Sectors of the volume: five lines.
const SECTORS: u64 = 40;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range =
        || (0..SECTORS, 1..20u64).prop_map(|(sector, count)| (sector, count.min(SECTORS - sector)));
    let mode = prop::sample::select(vec![Mode::WriteBack, Mode::WriteThrough]);
    prop::collection::vec(
        prop_oneof![
            4 => range().prop_map(|(sector, count)| Step::Write { sector, count }),
            4 => range().prop_map(|(sector, count)| Step::WriteStaged { sector, count }),
            1 => range().prop_map(|(sector, count)| Step::Abandon { sector, count }),
            4 => range().prop_map(|(sector, count)| Step::Read { sector, count }),
            1 => range().prop_map(|(sector, count)| Step::Zero { sector, count }),
            1 => Just(Step::Flush),
            1 => mode.prop_map(Step::SetMode),
        ],
        1..60,
    )
}

/// Tries a write until it is in flight or done.
fn write(rig: &mut Rig, sector: u64, count: u64, value: u64) {
    use forebay_engine::{Attempt, WriteOutcome};
    // A line with holes is destaged alone, so each of the five lines may cause a wait.
    for _ in 0..8 {
        let (offset, len) = (sector * 512, count * 512);
        match rig.write_again(1, offset, len, value, false, Attempt::default()) {
            WriteOutcome::Done => return,
            WriteOutcome::Started => return rig.complete_all(),
            _ => rig.complete_all(),
        }
    }
    panic!("nothing is left to wait for");
}

/// Writes with a staged payload, if there are enough slots.
fn write_staged(rig: &mut Rig, sector: u64, count: u64, value: u64) {
    use forebay_engine::{Attempt, WriteOutcome};
    let (offset, len) = (sector * 512, count * 512);
    let Some(slots) = rig.stage(offset, len, value) else {
        return write(rig, sector, count, value);
    };
    for _ in 0..8 {
        match rig.write_staged(1, offset, len, &slots, Attempt::default()) {
            WriteOutcome::Done => return,
            WriteOutcome::Started => return rig.complete_all(),
            _ => rig.complete_all(),
        }
    }
    panic!("nothing is left to wait for");
}

proptest! {
    #[test]
    fn reads_return_what_was_written(steps in steps()) {
        // Twelve slots hold all five lines twice, so that nothing is read past the cache and most
        // payloads can be staged.
        let mut rig = Rig::new(12, SECTORS / 8, Mode::WriteBack);
        let mut oracle: Vec<u64> = (0..SECTORS).map(Rig::on_disk).collect();
        for (value, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write { sector, count } => {
                    write(&mut rig, sector, count, value as u64);
                    oracle[sector as usize..(sector + count) as usize].fill(value as u64);
                }
                Step::WriteStaged { sector, count } => {
                    write_staged(&mut rig, sector, count, value as u64);
                    oracle[sector as usize..(sector + count) as usize].fill(value as u64);
                }
                Step::Abandon { sector, count } => {
                    if let Some(slots) = rig.stage(sector * 512, count * 512, value as u64) {
                        rig.unstage(&slots);
                    }
                }
                Step::Read { sector, count } => {
                    let expected = &oracle[sector as usize..(sector + count) as usize];
                    prop_assert_eq!(rig.read_to_end(sector * 512, count * 512), expected);
                }
                Step::Zero { sector, count } => {
                    prop_assert!(rig.zero(1, sector * 512, count * 512));
                    rig.complete_all();
                    oracle[sector as usize..(sector + count) as usize].fill(0);
                }
                Step::Flush => {
                    rig.flush(1);
                    rig.complete_all();
                    prop_assert_eq!(&rig.disk, &oracle);
                }
                Step::SetMode(mode) => rig.shard.volume_mut(VOLUME).set_mode(mode),
            }
            rig.answers.clear();
        }
        rig.flush(1);
        rig.complete_all();
        prop_assert_eq!(&rig.disk, &oracle);
        prop_assert_eq!(rig.shard.pins(), 0);
    }
}
