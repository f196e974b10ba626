//! The share of the pool for writes.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::server::Server;
use forebay_backend::layers::Kinds;
use forebay_nbd::NbdCommand;
use forebay_runtime::{Engine, ShareError};
use forebay_types::{Fault, Mode, WriteShare};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;
const BLOCK: u64 = 64 << 10;

on_both_engines! {
    a_share_below_what_is_dirty_loses_nothing,
}

fn share(percent: u8) -> Option<WriteShare> {
    Some(WriteShare::of_percent(percent).unwrap())
}

/// The content of a block in each of two rounds of writes.
fn block(at: u64, round: u64) -> Vec<u8> {
    vec![(at * 7 + round * 3 + 1) as u8; BLOCK as usize]
}

fn a_share_below_what_is_dirty_loses_nothing(engine: Engine) {
    let server = Server::start(engine);
    let (gate, _) = server.add_gated("disk", SIZE, Mode::WriteBack);
    gate.close(Kinds::WRITE);
    let memory = || server.runtime.status().unwrap().memory;
    let half = memory().dirty_bytes_max / 4 * 3;
    let mut client = server.client("disk");
    let mut blocks = 0;
    while memory().dirty_bytes < half {
        client.write(blocks * BLOCK, &block(blocks, 0)).unwrap();
        blocks += 1;
    }
    server.runtime.write_share().set(share(15));
    let limit = memory().dirty_bytes_max;
    assert!(limit < half / 2, "{limit} of {half}");
    assert!(memory().dirty_bytes >= half, "nothing is dropped");
    // A write to other lines waits for the destages that have begun.
    let (at, waits) = (blocks, || server.status("disk").engine.throttled_writes);
    let write = client.send(NbdCommand::Write, 0, at * BLOCK, BLOCK, &block(at, 1));
    wait_until("the write waits", PATIENCE, || waits() > 0);
    gate.open();
    assert_eq!(client.wait(write).result, Ok(()));
    for at in 0..blocks {
        client.write(at * BLOCK, &block(at, 1)).unwrap();
    }
    wait_until("the dirty data is below its share", PATIENCE, || memory().dirty_bytes <= limit);
    for at in 0..=blocks {
        assert_eq!(client.read(at * BLOCK, BLOCK).unwrap(), block(at, 1), "block {at}");
    }
    drop(client);
    server.stop();
}

#[test]
fn a_share_that_is_too_small_for_a_volume_is_refused() {
    let server = Server::start(Engine::Epoll);
    let shares = server.runtime.write_share();
    assert_eq!(shares.check(share(0)), Ok(()), "no volume writes back");
    server.add_gated("disk", SIZE, Mode::WriteBack);
    let error = shares.check(share(0)).unwrap_err();
    let ShareError::TooSmall {
        least: Some(least), ref volume, bytes: 0, needed_bytes: MIB, ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(volume, "disk");
    assert!(error.explained().contains(&format!("at least {}%", least.percent())), "{error}");
    assert_eq!(shares.check(Some(least)), Ok(()));
    let below = share(least.percent() - 1);
    assert!(shares.check(below).is_err());
    assert_eq!(shares.check(None), Ok(()));
    assert_eq!(shares.current_shortage(), None);
    shares.set(below);
    assert!(shares.current_shortage().is_some());
    server.stop();
}
