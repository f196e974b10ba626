//! Layers over memory.

use super::*;
use crate::{
    AlignedBuffer, Blocking, Buffer, Io, IoKind, IoToken, MemoryBackend, OpenOptions, conformance,
};
use forebay_types::{ByteRange, Fault, Few, IoError, IoResult};
use std::time::{Duration, Instant};
use tempfile::tempdir;

fn memory() -> Arc<dyn Backend> {
    Arc::new(MemoryBackend::new(16 << 20).unwrap())
}

fn open(spec: &str) -> Arc<dyn Backend> {
    crate::open(spec, &OpenOptions::default()).unwrap()
}

fn error(spec: &str) -> String {
    crate::open(spec, &OpenOptions::default()).err().unwrap().explained()
}

fn flush(wait: &Arc<crate::IoWait>, tag: u64) -> Io {
    let done = IoToken::new(wait.clone(), tag);
    Io { kind: IoKind::Flush, offset: 0, len: 0, buffers: Few::new(), done }
}

#[test]
fn a_stack_of_all_layers_passes_the_suite() {
    let directory = tempdir().unwrap();
    let trace = directory.path().join("trace.csv");
    let spec = format!(
        "trace(file={}):delay(write=10us,read=20us):error(rate=0):rate(bandwidth=4GiB/s):\
         memory:16MiB",
        trace.display()
    );
    let stack = open(&spec);
    assert_eq!(stack.description().name, spec);
    conformance::check(&stack);
    conformance::check(&(Gate::new(memory()) as Arc<dyn Backend>));
    let count = stack.io_count().unwrap();
    assert!(stack.native_file().is_none());
    drop(stack);
    let text = std::fs::read_to_string(trace).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "time_us,volume,op,offset_bytes,length_bytes");
    let of = |op: &str| lines.iter().filter(|line| line.split(',').nth(2) == Some(op)).count();
    assert_eq!((of("R") as u64, of("W") as u64), (count.reads, count.writes));
    assert_eq!(lines.len() as u64, 1 + count.reads + count.writes);
}

#[test]
fn every_layer_reports_that_its_disk_was_deleted() {
    let directory = tempdir().unwrap();
    for layer in ["blocks(size=4096)", "delay()", "error(rate=0)", "rate()", "volatile()"] {
        let path = directory.path().join("disk");
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let backend = open(&format!("{layer}:{}", path.display()));
        assert_eq!(backend.check_presence(), Ok(()), "{layer}");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(backend.check_presence(), Err(crate::Displaced::Deleted), "{layer}");
    }
}

#[test]
fn delays_are_kept() {
    let delay = open("delay(all=2ms,flush=0s):memory:1MiB");
    let blocking = Blocking::new(&*delay);
    let started = Instant::now();
    blocking.write(0, &[1; 512], false).unwrap();
    blocking.read(0, &mut [0; 512]).unwrap();
    // There is no upper bound: that depends on the machine.
    assert!(started.elapsed() >= Duration::from_millis(4), "{:?}", started.elapsed());
}

#[test]
fn forever_hangs_until_the_layer_is_closed() {
    let delays = Delays { read: DelayTime::Forever, ..Delays::default() };
    let delay = Delay::new(memory(), delays);
    let wait = crate::IoWait::new(1);
    let mut bytes = [0; 512];
    // SAFETY: `bytes` outlives the answer, which comes with the end of the layer.
    let buffers = vec![unsafe { Buffer::new(bytes.as_mut_ptr(), bytes.len()) }];
    let done = IoToken::new(wait.clone(), 0);
    delay.submit(Io { kind: IoKind::Read, offset: 0, len: 512, buffers: buffers.into(), done });
    Blocking::new(&delay).flush().unwrap();
    assert_eq!((delay.hung_count(), wait.answer(0)), (1, None));
    drop(delay);
    assert_eq!(wait.all(), [Err(IoError::Io)]);
}

#[test]
fn a_delayed_write_is_not_stored_when_the_layer_is_closed() {
    let below = memory();
    let delay = Delay::new(below.clone(), Delays::all(DelayTime::Ns(3_600_000_000_000)));
    let wait = crate::IoWait::new(1);
    let mut bytes = [7; 512];
    // SAFETY: as in the test above.
    let buffers = vec![unsafe { Buffer::new(bytes.as_mut_ptr(), bytes.len()) }];
    let done = IoToken::new(wait.clone(), 0);
    delay.submit(Io {
        kind: IoKind::Write { fua: true },
        offset: 0,
        len: 512,
        buffers: buffers.into(),
        done,
    });
    drop(delay);
    assert_eq!(wait.all(), [Err(IoError::Io)]);
    assert_eq!(below.io_count().unwrap().writes, 0);
}

#[test]
fn rates_are_kept() {
    // 20 I/Os at 1000/s take 20 ms; the bytes are cheap.
    let rate = open("rate(iops=1000,bandwidth=1GiB/s):memory:1MiB");
    let started = Instant::now();
    let blocking = Blocking::new(&*rate);
    (0..20).for_each(|_| blocking.write(0, &[1; 512], false).unwrap());
    assert!(started.elapsed() >= Duration::from_millis(20));
    // 1 MiB at 50 MiB/s takes 20 ms.
    let rate = open("rate(bandwidth=50MiB/s):memory:1MiB");
    let started = Instant::now();
    Blocking::new(&*rate).read(0, &mut vec![0; 1 << 20]).unwrap();
    assert!(started.elapsed() >= Duration::from_millis(20));
}

#[test]
fn errors_hit_matching_io_only() {
    let spec = "error(kind=read+flush,range=4KiB-8KiB,errno=ENOSPC):memory:1MiB";
    let backend = open(spec);
    let blocking = Blocking::new(&*backend);
    let mut bytes = [0; 512];
    assert_eq!(blocking.write(4096, &bytes, false), Ok(()));
    assert_eq!(blocking.read(4096, &mut bytes), Err(IoError::NoSpace));
    assert_eq!(blocking.read(8192, &mut bytes), Ok(()));
    assert_eq!(blocking.read(3584, &mut bytes), Ok(()));
    // A rule with a range does not match flushes.
    assert_eq!(blocking.flush(), Ok(()));
    // A failed write does not reach the backend below.
    let below = memory();
    let errors = ErrorLayer::new(below.clone(), ErrorRule { after: 2, ..ErrorRule::default() });
    let blocking = Blocking::new(&errors);
    assert_eq!(blocking.flush(), Ok(()));
    assert_eq!(blocking.write(0, &[1; 512], false), Ok(()));
    assert_eq!(blocking.write(0, &[2; 512], false), Err(IoError::Io));
    assert_eq!(blocking.flush(), Err(IoError::Io));
    errors.set_enabled(false);
    assert_eq!(blocking.read(0, &mut bytes), Ok(()));
    assert_eq!((bytes[0], errors.failed_count()), (1, 2));
}

#[test]
fn error_rates_are_kept_and_repeat() {
    let outcomes = |seed| -> Vec<bool> {
        let rule = ErrorRule { rate: 0.1, seed, ..ErrorRule::default() };
        let errors = ErrorLayer::new(memory(), rule);
        (0..2000).map(|_| Blocking::new(&errors).flush().is_err()).collect()
    };
    let first = outcomes(1);
    let failed = first.iter().filter(|&&failed| failed).count();
    assert!((150..250).contains(&failed), "{failed}");
    assert_eq!(first, outcomes(1));
    assert_ne!(first, outcomes(2));
}

/// Collects the tags of I/O in the order of the answers.
#[derive(Default)]
struct Answered(std::sync::Mutex<Vec<u64>>);

impl crate::CompletionSink for Answered {
    fn complete(&self, tag: u64, result: IoResult) {
        assert_eq!(result, Ok(()));
        self.0.lock().unwrap().push(tag);
    }
}

#[test]
fn no_new_io_overtakes_the_held_io_of_a_gate_that_opens() {
    let gate = Gate::new(memory());
    let answered = Arc::new(Answered::default());
    let flush = |done| Io { kind: IoKind::Flush, offset: 0, len: 0, buffers: Few::new(), done };
    let done = |tag| IoToken::new(answered.clone(), tag);
    gate.close(Kinds::FLUSH);
    // The answer to the first one submits the last one.
    let (opening, last) = (Arc::clone(&gate), flush(done(2)));
    gate.submit(flush(done(0).then(move |result, done| {
        done.complete(result);
        opening.submit(last);
    })));
    gate.submit(flush(done(1)));
    gate.open();
    assert_eq!(*answered.0.lock().unwrap(), [0, 1, 2]);
}

#[test]
fn a_gate_holds_releases_and_fails() {
    let gate = Gate::new(memory());
    let wait = crate::IoWait::new(4);
    gate.close(Kinds::FLUSH);
    (0..4).for_each(|tag| gate.submit(flush(&wait, tag)));
    assert!(gate.wait_held(4, Duration::from_secs(300)));
    assert!(!gate.wait_held(5, Duration::from_millis(1)));
    let held = HeldIo { kind: IoKind::Flush, range: ByteRange::new(0, 0) };
    assert_eq!(gate.held(), vec![held; 4]);
    // Other kinds pass.
    Blocking::new(&*gate).write(0, &[1; 512], false).unwrap();
    assert!(gate.release(1) && gate.fail(0, IoError::NoSpace) && !gate.release(2));
    assert_eq!(wait.answer(0), Some(Err(IoError::NoSpace)));
    assert_eq!((wait.answer(1), wait.answer(2)), (Some(Ok(())), None));
    gate.open();
    Blocking::new(&*gate).flush().unwrap();
    assert_eq!(wait.all(), [Err(IoError::NoSpace), Ok(()), Ok(()), Ok(())]);
}

#[test]
fn malformed_layer_names_are_refused() {
    for (spec, message) in [
        ("delay(read=5ms)", "layer delay is incomplete: write delay(OPTION=VALUE,…):BACKING"),
        ("delay(read=5ms):", "layer delay is incomplete: write delay(OPTION=VALUE,…):BACKING"),
        ("delay(read=5ms", "layer delay is incomplete: write delay(OPTION=VALUE,…):BACKING"),
        (
            "delay(reads=5ms):memory:1MiB",
            "delay has no option 'reads': the options are read, write, flush, discard, zero, all",
        ),
        (
            "delay(read=5):memory:1MiB",
            "delay: read='5' is invalid: write it like 5ms, 80us or forever",
        ),
        ("error(rate=2):memory:1MiB", "error: rate='2' is invalid: write it like 0.01 (0 to 1)"),
        (
            "error(range=2-1):memory:1MiB",
            "error: range='2-1' is invalid: write it like 1GiB-2GiB (the end is exclusive)",
        ),
        ("rate(iops=0):memory:1MiB", "rate: iops='0' is invalid: write it like 100"),
        ("trace():memory:1MiB", "trace needs file: add file=trace.csv"),
        (
            "trace(file=/nowhere/t):memory:1MiB",
            "cannot write the trace '/nowhere/t': No such file or directory (os error 2): give \
             a file in a directory that this user may write to",
        ),
    ] {
        assert_eq!(error(spec), message);
    }
    let deep = "delay():".repeat(17) + "memory:1MiB";
    assert_eq!(error(&deep), "more than 16 layers and models are nested: remove some of them");
    open(&("delay():".repeat(16) + "memory:1MiB"));
}

#[test]
fn a_look_at_a_store_takes_no_lock_and_begins_no_tenure_and_no_trace() {
    let directory = tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let (disk, record, trace) = (at("disk"), at("owners"), at("trace"));
    std::fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    let owned = format!("owned(record={record}):{disk}");
    let owner = open(&owned);
    let tenure = std::fs::read_to_string(&record).unwrap();
    let spec = format!("trace(file={trace},volume=0):{owned}");
    let observed = crate::open(&spec, &OpenOptions::observing()).unwrap();
    let [mut written, mut seen] = [(); 2].map(|()| AlignedBuffer::new(4096));
    written.fill(7);
    Blocking::new(&*owner).write(8192, &written, false).unwrap();
    Blocking::new(&*observed).read(8192, &mut seen).unwrap();
    assert!(*seen == *written);
    assert!(Blocking::new(&*observed).write(8192, &written, false).is_err());
    assert_eq!(std::fs::read_to_string(&record).unwrap(), tenure);
    assert!(!std::path::Path::new(&trace).exists());
    assert!(owner.check_presence().is_ok() && observed.tenure().is_none());
    // Nor does it keep the owner from opening it again.
    drop(owner);
    drop(open(&owned));
}
