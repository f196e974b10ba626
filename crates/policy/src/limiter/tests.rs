//! Clients with random requests, whose passages are compared with what the limits say.

use super::*;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

const NONE: RequestLimits = RequestLimits { requests: None, bytes: None, burst_us: 100_000 };

/// A request that has passed.
#[derive(Clone, Copy, Debug)]
struct Passed {
    client: usize,
    bytes: u64,
    /// When its client could submit it.
    ready_ns: u64,
    at_ns: u64,
}

/// A client: its requests, with the time that it thinks before each, and how many have passed.
struct Client {
    requests: Vec<(u64, u64)>,
    passed: usize,
    ready_ns: u64,
    /// When it tries again by itself.
    retry_ns: Option<u64>,
}

/// Lets all requests of all clients pass. Wakes arrive at once.
fn run(limits: RequestLimits, requests: Vec<Vec<(u64, u64)>>) -> Vec<Passed> {
    let mut limiter = RequestLimiter::default();
    assert_eq!(limiter.set(limits, 0), []);
    let mut passed = Vec::new();
    let mut clients: Vec<Client> = requests
        .into_iter()
        .map(|requests| {
            let ready_ns = requests.first().map_or(0, |first| first.0);
            Client { passed: 0, ready_ns, retry_ns: Some(ready_ns), requests }
        })
        .collect();
    while let Some((now, at)) = clients
        .iter()
        .enumerate()
        .filter(|(_, client)| client.passed < client.requests.len())
        .filter_map(|(at, client)| Some((client.retry_ns?, at)))
        .min()
    {
        let mut next = Some(at);
        while let Some(at) = next {
            next = serve(&mut limiter, &mut clients[at], at, now, &mut passed);
        }
    }
    assert!(clients.iter().all(|client| client.passed == client.requests.len()), "starvation");
    passed
}

/// Lets a client try. Returns the client to wake.
fn serve(
    limiter: &mut RequestLimiter<usize>,
    client: &mut Client,
    at: usize,
    now: u64,
    passed: &mut Vec<Passed>,
) -> Option<usize> {
    let mut wakes = None;
    while let Some(&(_, bytes)) = client.requests.get(client.passed)
        && client.ready_ns <= now
    {
        match limiter.pass(at, bytes, now) {
            Passage::Waits { ns } => {
                client.retry_ns = ns.map(|ns| now + ns);
                return wakes;
            }
            Passage::Passes { wakes: next, .. } => {
                assert!(wakes.is_none() || next.is_none(), "one turn, one next");
                wakes = wakes.or(next);
                passed.push(Passed { client: at, bytes, ready_ns: client.ready_ns, at_ns: now });
                client.passed += 1;
                let think = client.requests.get(client.passed).map_or(0, |next| next.0);
                client.ready_ns += think;
                client.ready_ns = client.ready_ns.max(if think > 0 { now + think } else { 0 });
            }
        }
    }
    client.retry_ns = Some(client.ready_ns);
    wakes.or_else(|| limiter.end_turn(at))
}

/// The time at which a bucket lets the last of these requests pass, by their costs and times.
fn due(rate: u64, capacity: i128, costs: &[(u64, u64)]) -> u64 {
    let (mut level, mut then) = (capacity, 0);
    let (last, earlier) = costs.split_last().unwrap();
    for &(cost, at) in earlier {
        level = capacity.min(level + i128::from(rate) * i128::from(at - then));
        level -= i128::from(cost) * UNITS;
        then = at;
    }
    let need = capacity.min(i128::from(last.0) * UNITS);
    let ns = (need - level).max(0).div_euclid(i128::from(rate));
    let rest = i128::from((need - level).max(0) % i128::from(rate) > 0);
    then + u64::try_from(ns + rest).unwrap()
}

/// Checks a limit: no interval has more than it allows, and no request waited for longer.
fn check(rate: u64, burst_us: u64, least: u64, passed: &[(u64, u64)]) -> Vec<u64> {
    let capacity = i128::from(rate) * i128::from(burst_us) * 1000;
    let capacity = capacity.max(i128::from(least) * UNITS);
    let largest = passed.iter().map(|&(cost, _)| i128::from(cost) * UNITS).max().unwrap_or(0);
    for from in 0..passed.len() {
        let mut sum = 0;
        for &(cost, at) in &passed[from..] {
            sum += i128::from(cost) * UNITS;
            let most = capacity.max(largest) + i128::from(rate) * i128::from(at - passed[from].1);
            assert!(sum <= most, "{sum} of {most} from {from}");
        }
    }
    (1..=passed.len()).map(|len| due(rate, capacity, &passed[..len])).collect()
}

fn limits() -> impl Strategy<Value = RequestLimits> {
    let requests = prop::option::of(1u64..3000);
    let bytes = prop::option::of(1u64 << 10..64 << 20);
    let limits = (requests, bytes, 1_000u64..2_000_000);
    limits.prop_map(|(requests, bytes, burst_us)| RequestLimits { requests, bytes, burst_us })
}

/// Requests of a client: some at once, some after a while.
fn requests() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let think = prop_oneof![3 => Just(0), 1 => 1..2 * SECOND, 1 => 1..3_000_000u64];
    let bytes = prop_oneof![Just(0), Just(4096), 1u64..2 << 20];
    prop::collection::vec((think, bytes), 0..40)
}

proptest! {
    #[test]
    fn limits_are_kept_and_used(
        limits in limits(),
        requests in prop::collection::vec(requests(), 1..5),
    ) {
        let passed = run(limits, requests);
        let mut due_ns = vec![0; passed.len()];
        for (rate, least, by_bytes) in [(limits.requests, 1, false), (limits.bytes, 0, true)] {
            let Some(rate) = rate else { continue };
            let cost = |passed: &Passed| (if by_bytes { passed.bytes } else { 1 }, passed.at_ns);
            let costs: Vec<_> = passed.iter().map(cost).collect();
            let due = check(rate, limits.burst_us, least, &costs);
            due_ns.iter_mut().zip(due).for_each(|(max, ns)| *max = ns.max(*max));
        }
        let mut before_ns = 0;
        for (passed, due_ns) in passed.iter().zip(due_ns) {
            // In the order that was chosen, each passes at the earliest time.
            assert_eq!(passed.at_ns, due_ns.max(before_ns).max(passed.ready_ns), "{passed:?}");
            before_ns = passed.at_ns;
        }
    }

    #[test]
    fn a_client_waits_for_one_turn_of_each_other_client(
        limits in limits(),
        requests in prop::collection::vec(requests(), 2..5),
    ) {
        let clients = requests.len();
        let passed = run(limits, requests);
        let time = |bytes: u64| {
            let requests = limits.requests.map_or(0, |rate| SECOND / rate);
            requests.max(limits.bytes.map_or(0, |rate| bytes * SECOND / rate))
        };
        let largest = passed.iter().map(|passed| time(passed.bytes)).max().unwrap_or(0);
        for (at, waited) in passed.iter().enumerate() {
            // It waits once its previous request has passed.
            let before = passed[..at].iter().rposition(|other| other.client == waited.client);
            let during = &passed[before.map_or(0, |before| before + 1)..at];
            for client in (0..clients).filter(|client| *client != waited.client) {
                let others = during.iter().filter(|other| other.client == client);
                let later = others.filter(|other| other.at_ns > waited.ready_ns);
                let used: u64 = later.map(|other| time(other.bytes)).sum();
                assert!(used <= TURN_NS + 2 * largest, "{used} ns of client {client}");
            }
        }
    }
}

#[test]
fn a_request_larger_than_the_burst_passes_and_leaves_a_debt() {
    let mut limiter = RequestLimiter::default();
    limiter.set(RequestLimits { bytes: Some(1 << 20), ..NONE }, 0);
    let passes = Passage::Passes { has_turn: false, wakes: None };
    assert_eq!(limiter.pass('a', 4 << 20, 0), passes);
    assert_eq!(limiter.pass('a', 4096, 0), Passage::Waits { ns: Some(3_903_906_250) });
    assert_eq!(limiter.pass('b', 0, 0), Passage::Waits { ns: None }, "it is not its turn");
    assert_eq!(limiter.pass('a', 4096, 3_903_906_249), Passage::Waits { ns: Some(1) });
    let passage = limiter.pass('a', 4096, 3_903_906_250);
    assert_eq!(passage, Passage::Passes { has_turn: false, wakes: Some('b') });
}

#[test]
fn limits_that_are_lifted_wake_all_that_wait() {
    let mut limiter = RequestLimiter::default();
    limiter.set(RequestLimits { requests: Some(1), ..NONE }, 0);
    assert_eq!(limiter.pass('a', 0, 0), Passage::Passes { has_turn: false, wakes: None });
    assert_eq!(limiter.pass('a', 0, 0), Passage::Waits { ns: Some(SECOND) });
    assert_eq!(limiter.pass('b', 0, 0), Passage::Waits { ns: None });
    let faster = RequestLimits { requests: Some(10), ..NONE };
    assert_eq!(limiter.set(faster, 0), ['a'], "its time is another one");
    assert_eq!(limiter.pass('a', 0, 0), Passage::Waits { ns: Some(SECOND / 10) });
    assert_eq!(limiter.set(NONE, 0), ['a', 'b']);
    assert_eq!(limiter.pass('b', 0, 0), Passage::Passes { has_turn: false, wakes: None });
}

#[test]
fn a_client_that_leaves_gives_its_turn_to_the_next() {
    let mut limiter = RequestLimiter::default();
    limiter.set(RequestLimits { requests: Some(1000), burst_us: 0, ..NONE }, 0);
    assert_eq!(limiter.pass('a', 0, 0), Passage::Passes { has_turn: false, wakes: None });
    for client in ['a', 'b', 'c'] {
        assert!(matches!(limiter.pass(client, 0, 0), Passage::Waits { .. }));
    }
    assert_eq!(limiter.cancel('b'), None);
    assert_eq!(limiter.cancel('a'), Some('c'));
    let passes = limiter.pass('c', 0, SECOND);
    assert_eq!(passes, Passage::Passes { has_turn: false, wakes: None });
    assert_eq!(limiter.end_turn('c'), None);
}

#[test]
fn nothing_passes_during_a_hold_and_everyone_does_after_it() {
    let limited = RequestLimits { requests: Some(1000), ..NONE };
    for (limits, first) in [(NONE, &[1, 2][..]), (limited, &[1])] {
        let mut limiter = RequestLimiter::default();
        assert_eq!(limiter.set(limits, 0), []);
        limiter.hold();
        for who in [1, 2, 1] {
            assert_eq!(limiter.pass(who, 0, 0), Passage::Waits { ns: None });
        }
        // A change of the limits does not end the hold.
        limiter.set(limits, 0);
        assert_eq!(limiter.pass(2, 0, 0), Passage::Waits { ns: None });
        let mut woken = limiter.release();
        assert_eq!(woken, first);
        let mut passed = Vec::new();
        while let Some(who) = woken.pop() {
            let Passage::Passes { has_turn, wakes } = limiter.pass(who, 0, SECOND) else {
                panic!("client {who} waits");
            };
            passed.push(who);
            let next = if has_turn { limiter.end_turn(who) } else { wakes };
            woken.extend(next);
        }
        passed.sort_unstable();
        assert_eq!(passed, [1, 2]);
    }
}
