//! A volume of which no line is read twice, beside one with a hot set.

use crate::instant::{InstantDisk, SLOTS};
use crate::rig::VOLUME;
use forebay_types::{Mode, VolumeId};

/// The volume that is read once.
const ONCE: VolumeId = VolumeId(1);
/// The lines of the hot set, which fit the pool.
const HOT: u64 = SLOTS as u64 * 7 / 8;

/// Reads the hot set in random order, and as many lines of the other volume for each read as
/// `once` says. Returns the share of reads of the hot set that were hits, of the last of `rounds`
/// passes.
fn share_of_hits(disk: &mut InstantDisk, rounds: u64, once: u64) -> f64 {
    let (mut random, mut hits) = (1_u64, 0);
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        random >> 33
    };
    for _ in 0..rounds {
        hits = 0;
        for _ in 0..HOT {
            hits += u64::from(disk.read_of(VOLUME, next() % HOT));
            for _ in 0..once {
                disk.read_of(ONCE, next() % (1 << 28));
            }
        }
    }
    hits as f64 / HOT as f64
}

fn disk_with_two_volumes() -> InstantDisk {
    let mut disk = InstantDisk::new(Mode::WriteThrough);
    disk.shard.add_volume(ONCE, 1 << 40, Mode::WriteThrough);
    disk
}

#[test]
fn a_hot_set_beside_a_volume_that_is_read_once_keeps_its_hits() {
    // With lines like any other's, 0.89 for 10.
    for once in [1, 4, 10] {
        let mut disk = disk_with_two_volumes();
        share_of_hits(&mut disk, 4, 0);
        let share = share_of_hits(&mut disk, 30, once);
        assert!(share >= 0.99, "{once} other reads for each: {share}");
        disk.shard.self_check();
    }
}

#[test]
fn a_volume_that_is_read_again_gets_its_place_back() {
    let mut disk = disk_with_two_volumes();
    share_of_hits(&mut disk, 10, 10);
    // Now it has a hot set, and the other one is idle.
    let pass = |disk: &mut InstantDisk| {
        (0..HOT).filter(|line| disk.read_of(ONCE, line * 1_009 % HOT)).count() as f64 / HOT as f64
    };
    let shares: Vec<f64> = (0..12).map(|_| pass(&mut disk)).collect();
    assert!(shares[11] > 0.97, "{shares:?}");
}
