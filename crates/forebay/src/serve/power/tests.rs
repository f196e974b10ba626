//! The monitor with a vault that cannot be written.

use super::*;
use forebay_frontend_nbd::NbdServer;
use forebay_runtime::{Ecc, Engine, RuntimeConfig};
use std::io::{Read, Seek};
use std::sync::atomic::AtomicU64;

/// A vault that can neither take a dump nor be emptied until it is repaired.
#[derive(Default)]
struct BrokenVault {
    attempts: AtomicU64,
    is_repaired: AtomicBool,
}

impl DumpTarget for BrokenVault {
    fn bytes_per_second(&self) -> Option<u64> {
        None
    }

    fn dump(&self, _: &[VolumeId]) -> anyhow::Result<DumpReport> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        anyhow::ensure!(self.is_repaired.load(Ordering::Relaxed), "input/output error");
        Ok(DumpReport::default())
    }

    fn set_on_battery(&self, _: bool) {}

    fn empty(&self) -> anyhow::Result<()> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        anyhow::ensure!(self.is_repaired.load(Ordering::Relaxed), "input/output error");
        Ok(())
    }
}

/// A monitor for a server without volumes.
fn monitor_with(vault: &Arc<BrokenVault>) -> MonitorThread {
    let config = RuntimeConfig {
        memory_bytes: 64 << 20,
        start_bytes: 64 << 20,
        workers: 1,
        engine: Engine::Epoll,
        journals: 0,
        ecc: Ecc::Off,
    };
    let runtime = Arc::new(Runtime::start(config, &NbdServer::new()).unwrap());
    let means = Means {
        saves: Saves::new(Arc::clone(&runtime)),
        runtime,
        dump_target: Some(Arc::clone(vault) as _),
        batteries: Batteries::open("/nonexistent/batteries.json".into()),
    };
    MonitorThread::new(
        PowerController::new(Expression::parse("a").unwrap(), Rules::default()),
        "a".to_owned(),
        Vec::new(),
        mpsc::channel().1,
        means,
        Duration::ZERO,
    )
}

/// A decision that does, or does not, order a dump.
fn decision(monitor: &mut MonitorThread, dump_now: bool) -> PowerDecision {
    let decision = monitor.controller.decide(now_ms(), &Exposure::default());
    PowerDecision { dump_now, ..decision }
}

fn advance(monitor: &mut MonitorThread, decision: &PowerDecision) {
    monitor.sequence.handle_order(order_of(decision));
    monitor.advance_dump(Some(decision));
}

/// Advances the dump until `vault` has been accessed once more.
fn advance_after_pause(monitor: &mut MonitorThread, vault: &BrokenVault, decision: &PowerDecision) {
    let before = vault.attempts.load(Ordering::Relaxed);
    while vault.attempts.load(Ordering::Relaxed) == before {
        std::thread::sleep(TICK);
        advance(monitor, decision);
    }
}

/// What `call` logs on this thread.
///
/// Each test uses it for all that logs: with one subscriber, a thread without one that reaches a
/// place for the first time turns the events of that place off for all.
fn log_of(call: impl FnOnce()) -> String {
    let mut file = tempfile::tempfile().unwrap();
    let writer = file.try_clone().unwrap();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
    tracing::subscriber::with_default(subscriber, call);
    let mut log = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut log).unwrap();
    log
}

#[test]
fn a_failure_is_logged_once_however_often_the_dump_is_repeated() {
    let vault = Arc::new(BrokenVault::default());
    let mut monitor = monitor_with(&vault);
    let decision = decision(&mut monitor, true);
    let log = log_of(|| (0..3).for_each(|_| advance_after_pause(&mut monitor, &vault, &decision)));
    for line in ["writes halted, dumping dirty data", "dump failed, dirty data is not protected"] {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }

    vault.is_repaired.store(true, Ordering::Relaxed);
    let log = log_of(|| advance_after_pause(&mut monitor, &vault, &decision));
    assert!(log.contains("dump complete and verified") && !log.contains("halted"), "{log}");
    assert!(monitor.sequence.is_complete());
}

#[test]
fn emptying_a_vault_that_fails_is_tried_once_a_second_and_writes_stay_halted() {
    log_of(empty_a_vault_that_fails);
}

fn empty_a_vault_that_fails() {
    let vault = Arc::new(BrokenVault::default());
    let attempts = || vault.attempts.load(Ordering::Relaxed);
    let mut monitor = monitor_with(&vault);
    let dump = decision(&mut monitor, true);
    vault.is_repaired.store(true, Ordering::Relaxed);
    advance(&mut monitor, &dump);
    assert!(monitor.sequence.is_complete());

    vault.is_repaired.store(false, Ordering::Relaxed);
    let decision = decision(&mut monitor, false);
    let before = attempts();
    // As many decisions as in one second.
    let begun = Instant::now();
    for _ in 0..50 {
        advance(&mut monitor, &decision);
    }
    let attempts_max = 1 + begun.elapsed().as_secs();
    let made = attempts() - before;
    assert!((1..=attempts_max).contains(&made), "{made} attempts");
    assert!(monitor.sequence.is_halted() && !monitor.sequence.is_complete());

    vault.is_repaired.store(true, Ordering::Relaxed);
    advance_after_pause(&mut monitor, &vault, &decision);
    assert!(!monitor.sequence.is_halted(), "writes are accepted again");
    let before = attempts();
    advance(&mut monitor, &decision);
    assert_eq!(attempts(), before, "an empty vault is left alone");
}

#[test]
fn power_may_not_be_cut_once_the_dump_is_no_longer_complete() {
    let vault = Arc::new(BrokenVault::default());
    let mut monitor = monitor_with(&vault);
    vault.is_repaired.store(true, Ordering::Relaxed);
    let dump = decision(&mut monitor, true);
    let mains_is_back = decision(&mut monitor, false);
    let log = log_of(|| {
        advance(&mut monitor, &dump);
        assert!(monitor.release_at.is_some(), "saves of volumes in memory get some time");
        vault.is_repaired.store(false, Ordering::Relaxed);
        advance(&mut monitor, &mains_is_back);
        assert!(monitor.sequence.is_halted() && !monitor.sequence.is_complete());
        monitor.release_when_saved();
    });
    assert!(log.contains("cannot empty the vault") && !log.contains("power may be cut"), "{log}");
}
