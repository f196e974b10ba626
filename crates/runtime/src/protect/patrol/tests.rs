//! A running server whose memory is damaged.

use super::{Ecc, IDLE_AFTER, LINES_IDLE, PAUSE, Patrol, parity_at};
use crate::BackgroundShares;
use crate::rig::common::client::{Client, PATIENCE};
use crate::rig::common::{DIRTY_AGE, GATHERS_ALL, before_lines_are_old, wait_until};
use crate::rig::{MIB, config, listen, open_journal, volume};
use crate::{Runtime, RuntimeConfig, VolumeSettings, VolumeStatus};
use forebay_backend::{Backend, MemoryBackend};
use forebay_ecc::{Line, LineParity};
use forebay_engine::{LineKey, Seal};
use forebay_frontend_nbd::NbdServer;
use forebay_types::{BackgroundShare, IoError, VolumeId};
use forebay_volume::shard_of;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

const SIZE: u64 = 8 << 20;
const LINE: usize = 4096;

struct Rig {
    runtime: Runtime,
    disk: File,
    id: VolumeId,
    directory: tempfile::TempDir,
}

fn rig(ecc: Ecc) -> Rig {
    rig_with(ecc, None)
}

fn rig_with(ecc: Ecc, log: Option<Arc<dyn Backend>>) -> Rig {
    let server = NbdServer::new();
    let journals = usize::from(log.is_some());
    let config = RuntimeConfig { workers: 2, journals, ecc, ..config(64 * MIB) };
    let runtime = Runtime::start(config, &server).unwrap();
    let directory = tempfile::tempdir().unwrap();
    listen(&server, &directory.path().join("nbd.sock"));
    let path = directory.path().join("disk.img");
    let disk = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
    disk.set_len(SIZE).unwrap();
    let backend = forebay_backend::open(path.to_str().unwrap(), &Default::default()).unwrap();
    let journal = log.map(|device| open_journal(&runtime, device));
    let gather_below = GATHERS_ALL;
    let settings = VolumeSettings { gather_below, journal, ..volume("v", backend) };
    let id = runtime.volumes().add(settings).unwrap();
    Rig { runtime, disk, id, directory }
}

impl Rig {
    fn client(&self) -> Client {
        Client::new(&self.directory.path().join("nbd.sock"), "v")
    }

    fn on_disk(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.disk.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    fn status(&self) -> VolumeStatus {
        self.runtime.status().unwrap().volumes.remove(0)
    }

    /// Waits until a line is sealed, and calls `access` with the number of its shard, which is
    /// locked, and its seal.
    fn once_sealed<T>(&self, offset: u64, access: impl Fn(usize, &Seal) -> T) -> T {
        let shared = self.runtime.shared();
        let number = shard_of(self.id, shared.stripes(self.id), offset, shared.shards.len());
        let key = LineKey::new(self.id, offset / LINE as u64);
        let mut result = None;
        wait_until("the line is sealed", PATIENCE, || {
            let shard = shared.shard(number);
            let slot = shard.slots().find_valid(key, 0);
            result = slot.and_then(|slot| shard.seal_of(slot)).map(|seal| access(number, &seal));
            result.is_some()
        });
        result.unwrap()
    }

    /// Flips all bits of `count` bytes of a line in the pool.
    fn damage(&self, offset: u64, count: usize) {
        self.once_sealed(offset, |shard, seal| {
            let line = self.runtime.shared().pool.line(shard, seal.slot);
            let start = line.wrapping_add(offset as usize % LINE);
            for at in 0..count {
                // SAFETY: inside the line; the shard is locked, and no client accesses the line.
                unsafe { *start.add(at) ^= 0xff };
            }
        });
    }

    /// Calls `access` with a dirty line in the pool and its parity.
    fn with_parity<T>(&self, offset: u64, access: impl Fn(&mut Line, &mut LineParity) -> T) -> T {
        let result = self.once_sealed(offset, |shard, seal| {
            let pool = &self.runtime.shared().pool;
            let line = pool.line(shard, seal.slot).cast::<Line>();
            let parity = parity_at(pool, shard, seal.parity?);
            // SAFETY: each is inside a slot of its own; the shard is locked, and no client accesses
            // the line. Any bytes are a valid value.
            Some(unsafe { access(&mut *line, &mut *parity) })
        });
        // Not under the lock, which a panic would poison.
        result.expect("the line is dirty")
    }

    fn wait_for_damage(&self, lines: u64) -> VolumeStatus {
        wait_until("the patrol finds the damage", PATIENCE, || {
            self.status().engine.damaged_lines >= lines
        });
        self.status()
    }
}

#[test]
fn damage_to_a_clean_line_is_detected_and_the_line_is_read_again() {
    let rig = rig(Ecc::Parity);
    let mut client = rig.client();
    let content = vec![0x5a; 64 * LINE];
    rig.disk.write_all_at(&content, 0).unwrap();
    assert_eq!(client.read(0, content.len() as u64).unwrap(), content);
    rig.damage(20 * LINE as u64 + 100, 1);
    rig.damage(40 * LINE as u64 + 7, 900);
    let status = rig.wait_for_damage(2);
    assert_eq!((status.engine.refetched_lines, status.engine.lost_lines), (2, 0));
    assert_eq!(client.read(0, content.len() as u64).unwrap(), content);
    assert_eq!(rig.status().engine.read_miss_lines, status.engine.read_miss_lines + 2);
}

#[test]
fn damage_to_a_dirty_line_is_corrected_from_its_parity() {
    before_lines_are_old(|| {
        let rig = rig(Ecc::Parity);
        let mut client = rig.client();
        let content: Vec<u8> = (0..16 * LINE).map(|at| ((at * 7) >> 3) as u8).collect();
        client.write(0, &content).unwrap();
        // A line with two valid sectors.
        client.write(SIZE / 2 + 512, &content[..1024]).unwrap();
        for line in 0..16u64 {
            rig.damage(line * LINE as u64 + line * 64 + 11, 6);
        }
        rig.damage(SIZE / 2 + 600, 3);
        let status = rig.wait_for_damage(17);
        assert_eq!((status.engine.corrected_lines, status.engine.lost_lines), (17, 0));
        assert_eq!(client.read(0, content.len() as u64).unwrap(), content);
        client.flush().unwrap();
        assert_eq!(rig.on_disk(0, content.len()), content);
        assert_eq!(rig.runtime.status().unwrap().memory.patrol.parity_bytes, 0);
    });
}

#[test]
fn uncorrectable_sectors_fail_until_they_are_written_again() {
    before_lines_are_old(|| {
        for (ecc, count) in [(Ecc::Parity, 7), (Ecc::Checksum, 1)] {
            let rig = rig(ecc);
            let mut client = rig.client();
            let content = vec![0x77; 4 * LINE];
            client.write(0, &content).unwrap();
            rig.damage(LINE as u64 + 1024, count);
            let status = rig.wait_for_damage(1);
            // Parity tells which sector is damaged.
            let lost = if ecc == Ecc::Parity { 1 } else { 8 };
            assert_eq!((status.engine.lost_lines, status.lost_sectors), (1, lost), "{ecc:?}");
            assert_eq!(client.read(LINE as u64 + 1024, 512), Err(IoError::Io));
            assert_eq!(client.read(0, 4 * LINE as u64), Err(IoError::Io));
            assert_eq!(client.read(0, LINE as u64).unwrap(), content[..LINE]);
            assert_eq!(client.flush(), Err(IoError::Io));
            let on_disk: Vec<u8> = rig.on_disk(LINE as u64 + 1024, 512);
            assert_eq!(on_disk, [0; 512], "a lost sector is not destaged");
            client.write(LINE as u64, &content[..LINE]).unwrap();
            assert_eq!(client.read(0, 4 * LINE as u64).unwrap(), content);
            client.flush().unwrap();
            assert_eq!(rig.on_disk(0, content.len()), content);
            assert_eq!(rig.status().lost_sectors, 0);
        }
    });
}

#[test]
fn lines_zeroed_or_swapped_with_their_parity_are_lost() {
    before_lines_are_old(|| {
        let rig = rig(Ecc::Parity);
        let mut client = rig.client();
        let content: Vec<u8> = (0..16 * LINE).map(|at| 1 + (at / LINE) as u8).collect();
        client.write(0, &content).unwrap();
        let line = |line: u64| line * LINE as u64;
        rig.with_parity(line(3), |line, parity| {
            line.fill(0);
            parity.fill(0);
        });
        let copy = |at| rig.with_parity(at, |line, parity| (*line, *parity));
        let (fifth, seventh) = (copy(line(5)), copy(line(7)));
        rig.with_parity(line(5), |line, parity| (*line, *parity) = seventh);
        rig.with_parity(line(7), |line, parity| (*line, *parity) = fifth);
        let status = rig.wait_for_damage(3);
        assert_eq!((status.engine.lost_lines, status.engine.corrected_lines), (3, 0));
        assert_eq!(status.lost_sectors, 24);
        for at in 0..16 {
            let found = client.read(line(at), LINE as u64);
            match at {
                3 | 5 | 7 => assert_eq!(found, Err(IoError::Io)),
                _ => assert_eq!(found.unwrap(), content[line(at) as usize..][..LINE]),
            }
        }
        assert_eq!(client.flush(), Err(IoError::Io));
        assert_eq!(rig.on_disk(line(5), LINE), [0; LINE], "a lost line is not destaged");
        client.write(0, &content).unwrap();
        client.flush().unwrap();
        assert_eq!(rig.on_disk(0, content.len()), content);
    });
}

#[test]
fn a_flipped_bit_of_a_seal_loses_nothing() {
    before_lines_are_old(|| {
        let rig = rig(Ecc::Parity);
        let mut client = rig.client();
        let content = vec![0x3c; 4 * LINE];
        client.write(0, &content).unwrap();
        rig.once_sealed(LINE as u64, |shard, seal| {
            let sum = rig.runtime.shared().pool.sum(shard, seal.slot);
            sum.fetch_xor(1 << 9, Ordering::Relaxed);
        });
        let status = rig.wait_for_damage(1);
        assert_eq!((status.engine.corrected_lines, status.engine.lost_lines), (1, 0));
        client.flush().unwrap();
        assert_eq!(rig.on_disk(0, content.len()), content);
        assert_eq!(rig.status().engine.damaged_lines, 1, "the seal is right again");
    });
}

#[test]
fn uncorrectable_sectors_are_restored_from_the_journal() {
    before_lines_are_old(|| {
        let log: Arc<dyn Backend> = Arc::new(MemoryBackend::new(40 << 20).unwrap());
        let rig = rig_with(Ecc::Checksum, Some(log));
        let mut client = rig.client();
        client.write(0, &vec![0x66; 4 * LINE]).unwrap();
        // The second record of these sectors is the newest.
        let mut content = vec![0x66; 4 * LINE];
        content[LINE..LINE + 1024].fill(0x77);
        client.write(LINE as u64, &[0x77; 1024]).unwrap();
        rig.damage(LINE as u64 + 512, 900);
        rig.wait_for_damage(1);
        wait_until("the line is restored", PATIENCE, || rig.status().engine.regained_lines == 1);
        let status = rig.status();
        assert_eq!((status.engine.lost_lines, status.lost_sectors), (1, 0));
        assert_eq!(client.read(0, 4 * LINE as u64).unwrap(), content);
        rig.runtime.volumes().flush("v", |_| {}).unwrap();
        assert_eq!(rig.on_disk(0, 4 * LINE), content);
    });
}

#[test]
fn lost_sectors_can_be_given_up() {
    before_lines_are_old(|| {
        let rig = rig(Ecc::Checksum);
        let mut client = rig.client();
        client.write(0, &[1; 2 * LINE]).unwrap();
        client.flush().unwrap();
        client.write(0, &[2; 2 * LINE]).unwrap();
        rig.damage(5, 1);
        assert_eq!(rig.wait_for_damage(1).lost_sectors, 8);
        assert!(
            rig.runtime.volumes().remove("v", |_| {}).is_err(),
            "its lost data is nowhere else"
        );
        rig.runtime.volumes().trust("v", |_| {}).unwrap();
        assert_eq!(client.read(0, LINE as u64).unwrap(), [1; LINE], "the disk's content");
        assert_eq!(client.read(LINE as u64, LINE as u64).unwrap(), [2; LINE]);
        client.flush().unwrap();
        rig.runtime.volumes().remove("v", |_| {}).unwrap();
    });
}

#[test]
fn damaged_data_is_never_destaged() {
    let rig = rig(Ecc::Parity);
    let mut client = rig.client();
    for round in 0..20u8 {
        let content = vec![round + 1; 32 * LINE];
        let begun = Instant::now();
        client.write(0, &content).unwrap();
        // The write replaced the damaged data of the previous round.
        let before = rig.status().engine;
        for line in 0..32u64 {
            rig.damage(line * LINE as u64 + 64 * u64::from(round), 5);
        }
        // The patrol or the flush corrects it, whichever verifies it first.
        client.flush().unwrap();
        assert_eq!(rig.on_disk(0, content.len()), content);
        let after = rig.status().engine;
        let damaged = after.damaged_lines - before.damaged_lines;
        let corrected = after.corrected_lines - before.corrected_lines;
        // On a slow machine, lines may be destaged by age before they are damaged. They are clean
        // then, and are read again instead.
        if begun.elapsed() < DIRTY_AGE {
            assert_eq!((damaged, corrected), (32, 32));
        }
    }
}

#[test]
fn the_patrol_keeps_verifying_when_everything_is_sealed() {
    let rig = rig(Ecc::Parity);
    let mut client = rig.client();
    client.read(0, 1 << 20).unwrap();
    let patrol = || rig.runtime.status().unwrap().memory.patrol;
    wait_until("all lines are sealed", PATIENCE, || {
        let now = patrol();
        now.sealed_lines >= 256 && now.unsealed_bytes == 0
    });
    let then = patrol();
    wait_until("all lines are verified again", PATIENCE, || {
        let now = patrol();
        now.verified_lines >= then.verified_lines + 256 && now.walks > then.walks && now.walk_ms > 0
    });
}

#[test]
fn a_short_gap_between_requests_is_not_idle_time() {
    let begun = Instant::now();
    let mut patrol = Patrol { shards: Vec::new(), turn: 0, next: None, busy_until: begun };
    assert!(patrol.is_idle(true, begun), "no request has arrived yet");
    assert!(!patrol.is_idle(false, begun));
    assert!(!patrol.is_idle(true, begun + IDLE_AFTER / 2));
    assert!(patrol.is_idle(true, begun + IDLE_AFTER));
}

#[test]
fn while_others_wait_for_processors_an_idle_worker_verifies_a_quarter_or_a_sixteenth() {
    let rig = rig(Ecc::Checksum);
    let mut client = rig.client();
    let lines = 1_024;
    for line in 0..lines {
        client.read(line * LINE as u64, LINE as u64).unwrap();
    }
    let shared = rig.runtime.shared();
    wait_until("all lines are sealed", PATIENCE, || {
        rig.runtime.status().unwrap().memory.patrol.unsealed_bytes == 0
    });
    // Another patrol over the shards of both workers.
    let begun = Instant::now();
    let shards = (0..shared.shards.len()).map(|shard| (shard, begun)).collect();
    let mut patrol = Patrol { shards, turn: 0, next: Some(begun), busy_until: begun };
    let mut slice = |processors| {
        shared.background.set(BackgroundShares { processors, ..BackgroundShares::default() });
        let verified =
            || -> u64 { shared.shards.each().map(|shard| shard.patrol_counters().verified).sum() };
        let (before, now) = (verified(), Instant::now() + IDLE_AFTER);
        patrol.next = Some(now);
        patrol.poll(shared, true, now);
        let pause = patrol.next.unwrap().saturating_duration_since(now);
        (verified() - before, pause)
    };
    let quarter = LINES_IDLE as u64 / 4;
    for (share, lines, least) in [
        (BackgroundShare::Full, 4 * quarter, PAUSE),
        (BackgroundShare::Reduced, quarter, PAUSE),
        (BackgroundShare::Least, quarter, PAUSE * 4),
    ] {
        // The patrols of the workers may verify some lines meanwhile.
        wait_until("a slice of this patrol alone", PATIENCE, || {
            let (verified, pause) = slice(share);
            assert!(verified >= lines && pause + IDLE_AFTER >= least, "{share}: {pause:?}");
            verified == lines
        });
    }
    drop(client);
}
