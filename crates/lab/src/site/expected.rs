//! What the clients of one volume may expect, on whichever host they are served.
//!
//! Each sector is a register that is linearizable over all clients: the oracle of the simulator,
//! with one time for the whole site. Exceptions, each counted:
//!
//! - **Late reads.** A server that is shut out and has not noticed it may answer reads as of the
//!   moment at which it was shut out.
//! - **Vanished reads.** A read may see a write that is not acknowledged yet, or that has failed.
//!   If the server dies before that is recorded, the write vanishes, as on a disk that loses power.

use super::store::number_in_stamps;
use crate::harness::oracle::{Oracle, Promise, ZERO};
use crate::harness::places::{SECTORS, places};
use forebay_types::ByteRange;
use forebay_volume::{Request, RequestKind};

/// A registration that was shut out of a device.
struct ShutOut {
    registration: u32,
    since: u32,
}

/// Changes whose servers are dead, and which may still reach the stores.
struct OpenChange {
    registration: u32,
    range: ByteRange,
    submitted: u32,
}

/// How a read was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadVerdict {
    Right,
    /// Older data than an acknowledged write, by a server that was shut out.
    Late,
}

pub(super) struct VolumeExpected {
    pub oracle: Oracle,
    shut_out: Vec<ShutOut>,
    limbo: Vec<OpenChange>,
    /// Contents that reads saw while their writes were in flight.
    seen: Vec<(u64, u64)>,
}

fn sectors_in(range: ByteRange) -> impl Iterator<Item = u64> {
    let range = if range.len == 0 { 0..0 } else { places(range) };
    range.map(|place| place as u64)
}

impl VolumeExpected {
    pub(super) fn new(volume: u16) -> Self {
        let oracle = Oracle::new(number_in_stamps(volume), SECTORS as u64, false);
        Self { oracle, shut_out: Vec::new(), limbo: Vec::new(), seen: Vec::new() }
    }

    /// Records the submission of a client's request. `oldest_read` is the submission of the oldest
    /// read in flight. Returns the version of its content.
    pub(super) fn submit(&mut self, request: Request, now: u32, oldest_read: u32) -> u32 {
        let shut_out = self.shut_out.iter().map(|it| it.since).min().unwrap_or(now);
        let sectors = sectors_in(request.range);
        self.oracle.submit(request.kind, sectors, now, oldest_read.min(shut_out))
    }

    /// Records the end of a change; it succeeded if `is_ok`.
    pub(super) fn end_change(&mut self, request: Request, submitted: u32, now: u32, is_ok: bool) {
        let promise = is_ok.then(|| Promise::of(request.kind, true, true));
        self.oracle.end(sectors_in(request.range), submitted, now, promise);
    }

    /// The server of a change is gone; until its registration is shut out, the change may happen.
    pub(super) fn leave_open(&mut self, registration: u32, range: ByteRange, submitted: u32) {
        self.limbo.push(OpenChange { registration, range, submitted });
    }

    /// A registration is shut out of one of the devices, or of both (`wholly`).
    pub(super) fn shut_out(&mut self, registration: u32, now: u32, wholly: bool) {
        if self.shut_out_since(registration).is_none() {
            self.shut_out.push(ShutOut { registration, since: now });
        }
        if wholly {
            for open in self.limbo.extract_if(.., |it| it.registration == registration) {
                self.oracle.end(sectors_in(open.range), open.submitted, now, None);
            }
        }
    }

    /// A server has ended what it had under this registration.
    pub(super) fn forget(&mut self, registration: u32) {
        self.shut_out.retain(|it| it.registration != registration);
    }

    /// The moment at which a registration was shut out, if it was.
    pub(super) fn shut_out_since(&self, registration: u32) -> Option<u32> {
        let mut all = self.shut_out.iter();
        all.find(|it| it.registration == registration).map(|it| it.since)
    }

    /// Checks what a read by the server with this registration has returned.
    pub(super) fn check_read(
        &mut self,
        request: Request,
        submitted: u32,
        registration: u32,
        stamps: &[u64],
    ) -> Result<ReadVerdict, String> {
        assert_eq!(request.kind, RequestKind::Read);
        if stamps.len() != places(request.range).len() {
            return Err(format!("a read of {} has {} sectors", request.range, stamps.len()));
        }
        let since = self.shut_out_since(registration);
        let mut verdict = ReadVerdict::Right;
        for (at, &found) in sectors_in(request.range).zip(stamps) {
            let is_right = match since {
                None => self.oracle.check_read(at, found, submitted),
                // What it shows binds no other server.
                Some(_) => self.oracle.permits_read(at, found, submitted),
            };
            if is_right {
                if self.oracle.is_in_flight(at, found) {
                    self.seen.push((at, found));
                }
                continue;
            }
            match since {
                Some(since) if self.oracle.permits_read(at, found, submitted.min(since)) => {
                    verdict = ReadVerdict::Late;
                }
                _ => {
                    let text = self.oracle.explain(at, found);
                    return Err(format!("a read submitted at {submitted}: sector {at} {text}"));
                }
            }
        }
        Ok(verdict)
    }

    /// Checks the content with which a new owner begins to serve. Returns how many sectors readers
    /// had seen with content that has vanished.
    pub(super) fn begin_service(
        &mut self,
        content: &[u64; SECTORS],
        now: u32,
    ) -> Result<u64, String> {
        let mut vanished = 0;
        for (at, found) in std::mem::take(&mut self.seen) {
            let now = content[at as usize];
            vanished += u64::from(now != ZERO && found as u32 > now as u32);
        }
        for (at, &found) in (0..).zip(content) {
            let observed = self.oracle.forget_observed(at);
            vanished += u64::from(observed.is_some_and(|observed| observed != found));
            if !self.oracle.check_read(at, found, now) {
                let text = self.oracle.explain(at, found);
                return Err(format!("a new owner begins with this: sector {at} {text}"));
            }
            // A server that was shut out may still show what it had.
            if self.shut_out.is_empty() {
                self.oracle.settle(at, found);
            }
        }
        Ok(vanished)
    }
}
