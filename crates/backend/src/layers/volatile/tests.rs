//! The volatile cache loses unflushed data, and nothing else.

use super::*;
use crate::layers::{Gate, Kinds};
use crate::{Blocking, IoToken, IoWait, MemoryBackend, OpenOptions, conformance};
use forebay_types::{Fault, Few};
use std::time::Duration;

const BYTES: u64 = 16 << 20;

fn memory() -> Arc<dyn Backend> {
    Arc::new(MemoryBackend::new(BYTES).unwrap())
}

fn over(inner: &Arc<dyn Backend>, volatility: Volatility) -> Volatile {
    Volatile::new(inner.clone(), volatility).unwrap()
}

fn read(backend: &dyn Backend, offset: u64) -> u8 {
    let mut bytes = [0xA5; 512];
    Blocking::new(backend).read(offset, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == bytes[0]), "a sector is torn");
    bytes[0]
}

/// Which of `count` written, unflushed blocks reached the backend below.
fn kept_of(count: u64, keep: f64, seed: u64) -> Vec<bool> {
    let below = memory();
    let layer = over(&below, Volatility { keep, seed, ..Volatility::default() });
    for sector in 0..count {
        Blocking::new(&layer).write(sector * 512, &[7; 512], false).unwrap();
    }
    // The thread writes kept blocks before it executes queued jobs, so the discard waits for them.
    Blocking::new(&layer).discard(BYTES - 512, 512).unwrap();
    drop(layer);
    (0..count).map(|sector| read(&*below, sector * 512) == 7).collect()
}

#[test]
fn the_suite_passes_with_any_keep_and_limit() {
    for spec in [
        "volatile():memory:16MiB",
        "volatile(keep=0.5,seed=3):memory:16MiB",
        "volatile(keep=1,limit=4KiB):memory:16MiB",
        "volatile(limit=512,keep=0.1):volatile():delay(write=20us):memory:16MiB",
    ] {
        let layer = crate::open(spec, &OpenOptions::default()).unwrap();
        assert_eq!(layer.description().name, spec);
        assert!(layer.native_file().is_none());
        conformance::check(&layer);
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(BYTES).unwrap();
    let spec = format!("volatile(keep=0.3,limit=1MiB):{}", path.display());
    conformance::check(&crate::open(&spec, &OpenOptions::default()).unwrap());
}

#[test]
fn unflushed_data_is_lost_and_flushed_data_is_not() {
    let below = memory();
    let layer = over(&below, Volatility::default());
    let blocking = Blocking::new(&layer);
    blocking.write(0, &[1; 512], false).unwrap();
    blocking.zero(8192, 4096, true).unwrap();
    blocking.flush().unwrap();
    assert_eq!(below.io_count().unwrap().flushes, 1);
    blocking.write(0, &[2; 512], false).unwrap();
    blocking.write(4096, &[3; 512], true).unwrap();
    blocking.write(512, &[4; 512], false).unwrap();
    blocking.zero(4096, 512, false).unwrap();
    // Reads return the newest data, cached or not.
    assert_eq!([0, 512, 4096].map(|offset| read(&layer, offset)), [2, 4, 0]);
    assert!(!layer.extents(ByteRange::new(512, 512))[0].zero);
    let mut bytes = [9; 2048];
    blocking.read_vectored(0, &mut bytes.chunks_mut(300).collect::<Vec<_>>()).unwrap();
    assert_eq!((bytes[511], bytes[512], bytes[1023], bytes[1024]), (2, 4, 4, 0));
    drop(layer);
    assert_eq!([0, 512, 4096].map(|offset| read(&*below, offset)), [1, 0, 3]);
}

#[test]
fn a_repeatable_share_of_unflushed_data_is_kept() {
    let first = kept_of(2000, 0.25, 1);
    let kept = first.iter().filter(|&&kept| kept).count();
    assert!((400..600).contains(&kept), "{kept}");
    assert_eq!(first, kept_of(2000, 0.25, 1));
    assert_ne!(first, kept_of(2000, 0.25, 2));
    assert_eq!(kept_of(100, 0.0, 1), [false; 100]);
    assert_eq!(kept_of(100, 1.0, 1), [true; 100]);
}

#[test]
fn the_cache_stays_within_its_limit() {
    let below = memory();
    let layer = over(&below, Volatility { limit_bytes: 64 << 10, ..Volatility::default() });
    for block in 0..256 {
        Blocking::new(&layer).write(block * 4096, &[5; 4096], false).unwrap();
    }
    assert!(lock(&layer.shared.state).cache.bytes() <= 64 << 10);
    assert_eq!(below.io_count().unwrap().flushes, 0);
    drop(layer);
    let lost = (0..256).filter(|block| read(&*below, block * 4096) == 0).count();
    assert!((1..=16).contains(&lost), "{lost}");
}

#[test]
fn a_flush_waits_for_its_writes_and_fails_with_them() {
    let gate = Gate::new(memory());
    let below: Arc<dyn Backend> = gate.clone();
    let layer = over(&below, Volatility::default());
    Blocking::new(&layer).write(0, &[1; 512], false).unwrap();
    gate.close(Kinds::ALL);
    let wait = IoWait::new(2);
    let flush = |tag| {
        let done = IoToken::new(wait.clone(), tag);
        layer.submit(Io { kind: IoKind::Flush, offset: 0, len: 0, buffers: Few::new(), done });
    };
    flush(0);
    assert!(gate.wait_held(1, Duration::from_secs(300)));
    assert_eq!((gate.held()[0].kind, wait.answer(0)), (IoKind::Write { fua: false }, None));
    // A newer write of the same block is not mistaken for the one in flight.
    Blocking::new(&layer).write(0, &[2; 512], false).unwrap();
    gate.fail(0, IoError::NoSpace);
    flush(1);
    assert!(gate.wait_held(1, Duration::from_secs(300)));
    assert_eq!(wait.answer(0), Some(Err(IoError::NoSpace)));
    gate.open();
    assert_eq!(wait.all()[1], Ok(()));
    drop(layer);
    assert_eq!(read(&*below, 0), 2);
}

#[test]
fn an_overwrite_of_a_block_in_flight_stays_cached() {
    let gate = Gate::new(memory());
    let below: Arc<dyn Backend> = gate.clone();
    let layer = over(&below, Volatility::default());
    Blocking::new(&layer).write(0, &[1; 512], false).unwrap();
    gate.close(Kinds::ALL);
    let wait = IoWait::new(1);
    let done = IoToken::new(wait.clone(), 0);
    layer.submit(Io { kind: IoKind::Flush, offset: 0, len: 0, buffers: Few::new(), done });
    assert!(gate.wait_held(1, Duration::from_secs(300)));
    Blocking::new(&layer).write(0, &[2; 512], false).unwrap();
    gate.open();
    assert_eq!(wait.all(), [Ok(())]);
    assert_eq!((read(&layer, 0), read(&*below, 0)), (2, 1));
    Blocking::new(&layer).flush().unwrap();
    assert_eq!(read(&*below, 0), 2);
}

#[test]
fn malformed_options_are_refused() {
    let error = |spec: &str| {
        crate::open(spec, &OpenOptions::default()).err().map(|error| error.explained()).unwrap()
    };
    assert_eq!(
        error("volatile(keep=2):memory:1MiB"),
        "volatile: keep='2' is invalid: write it like 0.5 (0 to 1)"
    );
    assert_eq!(
        error("volatile(limit=0):memory:1MiB"),
        "volatile: limit='0' is invalid: write it like 64MiB"
    );
    assert_eq!(
        error("volatile(rate=1):memory:1MiB"),
        "volatile has no option 'rate': the options are keep, limit, seed"
    );
}
