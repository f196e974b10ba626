//! `forebay slow`: the last slow requests, and what each waited for.

use super::connect;
use crate::arguments::ShowArguments;
use crate::report::{print, print_json};
use forebay_api::{SlowRequest, SlowRequests, SlowWait, WaitingRequest};
use forebay_terminal::units::{bytes, count, micros};

/// `forebay slow`: the last `last` slow requests.
pub(crate) fn slow(name: Option<&str>, last: usize, show: &ShowArguments) -> anyhow::Result<()> {
    let mut slow = connect(&show.state)?.slow_requests(name)?;
    slow.requests.drain(..slow.requests.len().saturating_sub(last));
    match show.json {
        true => print_json(&slow),
        false => print(&text(&slow)),
    }
}

fn text(slow: &SlowRequests) -> String {
    if slow.total == 0 && slow.waiting_total == 0 {
        return "no slow requests\n".to_owned();
    }
    let waiting = slow.waiting.iter().map(waiting).collect::<String>();
    let unlisted = slow.waiting_total.saturating_sub(slow.waiting.len() as u64);
    let more = match unlisted {
        0 => String::new(),
        more => format!("and {} more wait\n", count(more)),
    };
    let shown: u64 = slow.requests.iter().map(|request| request.requests).sum();
    let requests = slow.requests.iter().map(entry).collect::<String>();
    let (shown, total) = (count(shown), count(slow.total));
    format!("{requests}{waiting}{more}{shown} of {total} slow requests since the start\n")
}

/// A request that is not answered yet, in one line.
fn waiting(waiting: &WaitingRequest) -> String {
    let WaitingRequest { volume, operation, fua, offset, length, waited_us } = waiting;
    let fua = if *fua { " (FUA)" } else { "" };
    let range = offset.zip(*length);
    let range = range.map(|(offset, length)| format!(" of {} at {offset}", bytes(length)));
    let range = range.unwrap_or_default();
    format!("not answered: {volume}: {operation}{fua}{range} waits for {}\n", micros(*waited_us))
}

/// A request in two lines.
fn entry(slow: &SlowRequest) -> String {
    let operation = format!("{}{}", slow.operation, if slow.fua { " (FUA)" } else { "" });
    let what = match (slow.requests, slow.offset, slow.length) {
        (1, Some(offset), Some(length)) => format!("{operation} of {} at {offset}", bytes(length)),
        (1, ..) => operation,
        (requests, ..) => format!("{} requests ({operation})", count(requests)),
    };
    let served = slow.served.iter().map(|served| format!(", served: {served}")).collect::<String>();
    let waits = slow.waits.iter().map(wait).collect::<Vec<_>>().join(", then ");
    let counted = |number: u64, one: &str, more: &str| match number {
        0 => String::new(),
        1 => format!("; 1 {one}"),
        _ => format!("; {number} {more}"),
    };
    let ios = counted(slow.ios, "I/O", "I/Os");
    let errors = counted(slow.errors, "failed attempt", "failed attempts");
    let SlowRequest { at, volume, took_us, .. } = slow;
    format!("{at} {volume}: {what} took {}{served}\n    {waits}{ios}{errors}\n", micros(*took_us))
}

/// As in `disk 1.2 s (3 times, longest 900 ms)`.
fn wait(wait: &SlowWait) -> String {
    let times = match wait.times {
        2.. => format!(" ({} times, longest {})", count(wait.times), micros(wait.longest_us)),
        _ => String::new(),
    };
    format!("{} {}{times}", wait.what, micros(wait.us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_its_waits_in_order() {
        let wait = |what: &str, us| SlowWait { what: what.into(), us, times: 1, longest_us: us };
        let read = SlowRequest {
            at: "2026-02-28T13:05:09Z".into(),
            volume: "db".into(),
            operation: "read".into(),
            requests: 1,
            offset: Some(1 << 30),
            length: Some(8192),
            took_us: 1_250_000,
            served: Some("miss".into()),
            waits: vec![
                wait("write", 40_000),
                SlowWait { times: 2, longest_us: 900_000, ..wait("disk", 1_210_000) },
            ],
            ios: 2,
            errors: 1,
            fua: false,
        };
        let write =
            SlowRequest { operation: "write".into(), fua: true, ios: 1, errors: 0, ..read.clone() };
        let turn = SlowRequest {
            requests: 64,
            offset: None,
            length: None,
            served: None,
            waits: vec![wait("worker", 1_250_000)],
            ios: 0,
            errors: 0,
            ..read.clone()
        };
        let wait = |operation: &str, length, waited_us| WaitingRequest {
            volume: "db".into(),
            operation: operation.into(),
            offset: length,
            length,
            waited_us,
            ..WaitingRequest::default()
        };
        let slow = SlowRequests {
            total: 70,
            requests: vec![read, write, turn],
            waiting_total: 5,
            waiting: vec![wait("read", Some(4096), 45_000_000), wait("flush", None, 1_500_000)],
        };
        assert_eq!(
            text(&slow),
            "2026-02-28T13:05:09Z db: read of 8.0 KiB at 1073741824 took 1.2 s, served: miss\n    \
             write 40 ms, then disk 1.2 s (2 times, longest 900 ms); 2 I/Os; 1 failed attempt\n\
             2026-02-28T13:05:09Z db: write (FUA) of 8.0 KiB at 1073741824 took 1.2 s, \
             served: miss\n    \
             write 40 ms, then disk 1.2 s (2 times, longest 900 ms); 1 I/O\n\
             2026-02-28T13:05:09Z db: 64 requests (read) took 1.2 s\n    \
             worker 1.2 s\n\
             not answered: db: read of 4.0 KiB at 4096 waits for 45 s\n\
             not answered: db: flush waits for 1.5 s\n\
             and 3 more wait\n\
             66 of 70 slow requests since the start\n"
        );
        assert_eq!(text(&SlowRequests::default()), "no slow requests\n");
    }
}
