//! Held-out regions are served as if there were no cache, and both sides are timed.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::journal::memory;
use crate::server::{Server, settings};
use forebay_backend::Backend;
use forebay_nbd::NbdCommand;
use forebay_runtime::{ArmTimes, Engine, Uncached};
use forebay_types::{HoldOut, Mode, REGION_BYTES};
use std::sync::Arc;

on_both_engines! {
    both_sides_of_a_hold_out_are_timed,
    a_stream_in_held_out_regions_is_not_read_ahead,
    an_unknown_volume_has_no_hold_out,
}

const MIB: u64 = 1 << 20;

fn arms(server: &Server) -> ArmTimes {
    let all = server.runtime.volumes().statistics();
    all.iter().find(|volume| volume.name == "disk").unwrap().arms
}

/// Served reads, held-out reads, served writes, held-out writes.
fn counts(server: &Server) -> [u64; 4] {
    let arms = arms(server);
    [arms.served_reads, arms.held_reads, arms.served_writes, arms.held_writes]
        .map(|times| times.counts.iter().sum())
}

fn both_sides_of_a_hold_out_are_timed(engine: Engine) {
    let server = Server::start(engine);
    let disk = server.add_memory("disk", 64 * MIB, Mode::WriteThrough);
    let mut client = server.client("disk");
    assert_eq!(client.write(0, &[1; 4096]), Ok(()));
    assert!(client.read(0, 4096).is_ok());
    assert_eq!(counts(&server), [0; 4], "nothing is timed without a hold-out");
    let hold_out = HoldOut::new(500_000, 9);
    server.runtime.volumes().set_hold_out("disk", hold_out).unwrap();
    let held = (0..64).filter(|&region| hold_out.holds(region)).count() as u64;
    for round in 0..3 {
        for region in 0..64 {
            let offset = region * REGION_BYTES;
            assert_eq!(client.write(offset, &[round; 8192]), Ok(()));
            assert_eq!(client.read(offset, 8192), Ok(vec![round; 8192]));
        }
    }
    // Times are recorded at the end of a turn, after its answers are sent.
    let reads = |server: &Server| counts(server)[..2] == [3 * (64 - held), 3 * held];
    wait_until("the last read is timed", PATIENCE, || reads(&server));
    let [served_reads, held_reads, served_writes, held_writes] = counts(&server);
    assert_eq!(served_writes, served_reads);
    assert_eq!(held_writes, 3 * held);
    assert!(arms(&server).held_reads.sums_ns.iter().sum::<u64>() > 0);
    // A request of which only a part is held out belongs to neither side.
    let border = (0..63).find(|&region| hold_out.holds(region) != hold_out.holds(region + 1));
    let across = (border.unwrap() + 1) * REGION_BYTES - 4096;
    assert!(client.read(across, 8192).is_ok());
    let reasons = server.status("disk").statistics.requests;
    assert!(reasons.uncached_reads[Uncached::HoldOut as usize] > held_reads);
    let before = disk.io_count().unwrap().reads;
    server.runtime.volumes().set_hold_out("disk", HoldOut::NONE).unwrap();
    assert_eq!(client.read(0, 8192), Ok(vec![2; 8192]));
    assert!(disk.io_count().unwrap().reads <= before + 1);
    // Many turns have ended meanwhile.
    assert!(server.client("disk").read(0, 4096).is_ok());
    assert_eq!(counts(&server)[..2], [served_reads, held_reads]);
}

fn a_stream_in_held_out_regions_is_not_read_ahead(engine: Engine) {
    let server = Server::start(engine);
    let disk = memory(16 * MIB);
    let mut volume = settings("disk", Arc::clone(&disk) as _, Mode::WriteThrough);
    volume.config.prefetch = true;
    server.runtime.volumes().add(volume).unwrap();
    server.runtime.volumes().set_hold_out("disk", HoldOut::ALL).unwrap();
    let mut client = server.client("disk");
    for offset in (0..2 * MIB).step_by(4096) {
        assert_eq!(client.read(offset, 4096), Ok(vec![0; 4096]));
    }
    // A client's own hint is not followed either.
    let hint = client.send(NbdCommand::Cache, 0, 8 * MIB, 65536, &[]);
    assert_eq!(client.wait(hint).result, Ok(()));
    assert_eq!(disk.io_count().unwrap().reads, 512, "one for each read");
    let status = server.status("disk");
    assert_eq!((status.engine.prefetched_lines, status.cached_bytes), (0, 0));
}

fn an_unknown_volume_has_no_hold_out(engine: Engine) {
    let server = Server::start(engine);
    let error = server.runtime.volumes().set_hold_out("disk", HoldOut::ALL).unwrap_err();
    assert!(error.to_string().contains("disk"), "{error}");
}
