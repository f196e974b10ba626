//! The server's side of the handshake, from the greeting to the transmission phase.
//!
//! [`Handshake`] owns what one client has negotiated so far, and nothing else: bytes go in,
//! bytes and a [`Step`] come out. Its invariants:
//!
//! - The stream stays in step whatever an option says: the length in its header decides how many
//!   bytes it takes, and an option that is refused is skipped, not parsed (N-03).
//! - No length from the wire drives an allocation. Options that are read are at most
//!   [`OPTION_BYTES_MAX`] long and are read where they lie in the caller's buffer; longer ones
//!   are counted down as they pass by (N-07, P-03).
//! - What was negotiated in plain text is forgotten when TLS starts (T-06).
//!
//! The price is that the caller's buffer must be able to hold [`HANDSHAKE_INPUT_BYTES_MAX`].

mod meta;
mod options;
mod reply;
mod step;

pub use step::{CloseReason, Refusal, Step};

use crate::{
    ExportInfo, Exports, Negotiated,
    proto::{
        CLIENT_FLAGS_BYTES, GREETING_MAGIC, OPTION_HEADER_BYTES, OPTION_MAGIC, handshake_flag,
        option,
    },
    wire::{Reader, put_u16, put_u64},
};
use forebay_types::{VolumeId, limits::OPTION_BYTES_MAX};

/// Bytes the buffer in front of [`Handshake::advance`] must be able to hold.
pub const HANDSHAKE_INPUT_BYTES_MAX: usize = OPTION_HEADER_BYTES + OPTION_BYTES_MAX as usize;

/// Bytes of refused options that one handshake lets pass by before the client is dropped. Twice
/// the largest payload a client may ever send; real options have a few hundred bytes.
pub const HANDSHAKE_SKIP_BYTES_MAX: u32 = 64 << 20;

/// Options that one handshake answers before the client is dropped. Enough to list a thousand
/// exports and ask about each of them several times.
pub const HANDSHAKE_OPTIONS_MAX: u32 = 16 << 10;

/// Once a call has produced this many bytes it returns [`Step::Flush`], so that a client which
/// sends many small options with long answers can't fill the memory (D-02).
const FLUSH_BYTES: usize = 64 << 10;

/// What a listener says about TLS. It never changes within a connection (T-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Tls {
    /// There is no TLS; exports that demand it are not offered.
    #[default]
    Off,
    /// TLS is offered, and demanded for the exports that say so.
    Selective,
    /// Nothing is served without TLS.
    Forced,
}

/// What a handshake must know about its listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HandshakeConfig {
    /// The listener's word on TLS.
    pub tls: Tls,
}

/// Where in the stream the handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The client's flags come next.
    ClientFlags,
    /// An option's header comes next.
    Header,
    /// The data of an option that is read comes next.
    Body { option: u32, len: u32 },
    /// The data of an option that is not read comes next; then it is answered.
    Skip { option: u32, left: u32, reply: u32 },
    /// TLS comes next.
    AwaitTls,
    /// Nothing comes any more.
    Over,
}

/// What one turn of the state machine came to: the bytes it took, and the step it ends with, or
/// `None` to take another turn.
type Turn = (usize, Option<Step>);

/// The handshake of one connection. See the module's description.
#[derive(Debug)]
pub struct Handshake {
    config: HandshakeConfig,
    phase: Phase,
    /// The client knows how to get an error reply.
    fixed: bool,
    no_zeroes: bool,
    tls_on: bool,
    shutting_down: bool,
    structured: bool,
    extended: bool,
    /// The export for which `base:allocation` is selected (M-05).
    allocation_selected: Option<VolumeId>,
    skip_bytes_left: u32,
    options_left: u32,
}

impl Handshake {
    /// A handshake that has not begun.
    pub const fn new(config: HandshakeConfig) -> Self {
        Self {
            config,
            phase: Phase::ClientFlags,
            fixed: false,
            no_zeroes: false,
            tls_on: false,
            shutting_down: false,
            structured: false,
            extended: false,
            allocation_selected: None,
            skip_bytes_left: HANDSHAKE_SKIP_BYTES_MAX,
            options_left: HANDSHAKE_OPTIONS_MAX,
        }
    }

    /// Appends what the server says first, unasked (H-01).
    pub fn greeting(&mut self, out: &mut Vec<u8>) {
        put_u64(out, GREETING_MAGIC);
        put_u64(out, OPTION_MAGIC);
        put_u16(out, handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    }

    /// From now on every option but `ABORT` is refused, for the server is stopping (N-08).
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// TLS is on: all that was negotiated before is forgotten (T-06).
    ///
    /// # Panics
    /// Where the last step was not [`Step::StartTls`].
    pub fn tls_established(&mut self) {
        assert_eq!(self.phase, Phase::AwaitTls, "TLS starts only where the handshake asked for it");
        self.phase = Phase::Header;
        self.tls_on = true;
        self.structured = false;
        self.extended = false;
        self.allocation_selected = None;
    }

    /// Whether the session is inside TLS.
    pub const fn is_tls(&self) -> bool {
        self.tls_on
    }

    /// Takes what it can from the start of `input`, appends what is to be sent to `out`, and
    /// says how many bytes it took and what comes next.
    pub fn advance(
        &mut self,
        input: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> (usize, Step) {
        let mut consumed = 0;
        let out_start = out.len();
        loop {
            let turn_start = out.len();
            let (taken, step) = self.turn(&input[consumed..], exports, out);
            consumed += taken;
            debug_assert!(consumed <= input.len());
            match step {
                // What follows in plain text was put there by the client's mistake or by someone
                // else, and must never be read as if it had come through TLS.
                Some(Step::StartTls) if consumed < input.len() => {
                    out.truncate(turn_start);
                    self.phase = Phase::Over;
                    return (consumed, Step::Close(CloseReason::PlainText));
                }
                Some(step) => {
                    if matches!(step, Step::Enter(_) | Step::Close(_)) {
                        self.phase = Phase::Over;
                    }
                    return (consumed, step);
                }
                None if out.len() - out_start >= FLUSH_BYTES => return (consumed, Step::Flush),
                None => {}
            }
        }
    }

    fn turn(&mut self, input: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Turn {
        match self.phase {
            Phase::ClientFlags => self.on_client_flags(input),
            Phase::Header => self.on_header(input),
            Phase::Body { option, len } => match input.get(..len as usize) {
                None => (0, Some(Step::NeedMore)),
                Some(data) => {
                    self.phase = Phase::Header;
                    (data.len(), self.on_option(option, data, exports, out))
                }
            },
            Phase::Skip { option, left, reply } => {
                self.on_skipped(input.len(), option, left, reply, out)
            }
            Phase::AwaitTls if input.is_empty() => (0, Some(Step::NeedMore)),
            Phase::AwaitTls => (0, Some(Step::Close(CloseReason::PlainText))),
            Phase::Over => (0, Some(Step::Close(CloseReason::Over))),
        }
    }

    fn on_client_flags(&mut self, input: &[u8]) -> Turn {
        let Some(flags) = Reader::new(input).u32() else { return (0, Some(Step::NeedMore)) };
        let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        if flags & !u32::from(known) != 0 {
            let close = Step::Close(CloseReason::ClientFlags(flags));
            return (CLIENT_FLAGS_BYTES, Some(close));
        }
        self.fixed = flags & u32::from(handshake_flag::FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        self.phase = Phase::Header;
        (CLIENT_FLAGS_BYTES, None)
    }

    fn on_header(&mut self, input: &[u8]) -> Turn {
        let mut reader = Reader::new(input);
        let (Some(magic), Some(option), Some(len)) = (reader.u64(), reader.u32(), reader.u32())
        else {
            return (0, Some(Step::NeedMore));
        };
        let taken = OPTION_HEADER_BYTES;
        if magic != OPTION_MAGIC {
            return (taken, Some(Step::Close(CloseReason::OptionMagic(magic))));
        }
        if self.options_left == 0 {
            return (taken, Some(Step::Close(CloseReason::OptionCount)));
        }
        self.options_left -= 1;
        match self.judge_header(option, len) {
            Ok(()) => self.phase = Phase::Body { option, len },
            Err(options::Unread::Close(refusal)) => {
                return (taken, Some(Step::Close(CloseReason::ExportRefused(refusal))));
            }
            Err(options::Unread::Answer(reply)) => {
                let Some(skip_bytes_left) = self.skip_bytes_left.checked_sub(len) else {
                    return (taken, Some(Step::Close(CloseReason::OptionLength(len))));
                };
                self.skip_bytes_left = skip_bytes_left;
                self.phase = Phase::Skip { option, left: len, reply };
            }
        }
        (taken, None)
    }

    /// Lets the data of an unread option pass by, then answers it.
    fn on_skipped(
        &mut self,
        input_len: usize,
        option: u32,
        left: u32,
        reply: u32,
        out: &mut Vec<u8>,
    ) -> Turn {
        let passed = input_len.min(left as usize);
        let left = left - passed as u32;
        if left > 0 {
            self.phase = Phase::Skip { option, left, reply };
            return (passed, Some(Step::NeedMore));
        }
        self.phase = Phase::Header;
        reply::put_final(out, option, reply);
        let aborted = option == option::ABORT;
        (passed, aborted.then_some(Step::Close(CloseReason::Aborted)))
    }

    /// The listener's word on TLS for this client. One without fixed newstyle can't be told to
    /// start TLS, so for it there is none (H-04); what demands TLS stays closed to it.
    fn tls_offered(&self) -> bool {
        self.fixed && self.config.tls != Tls::Off
    }

    /// Whether this session may enter or hear about the export.
    fn may_see(&self, export: &ExportInfo) -> bool {
        self.tls_on || !export.tls_only
    }

    /// The terms under which the client enters the export now.
    fn enter(&self, export: &ExportInfo) -> Step {
        let chunked = self.is_chunked();
        let selected = chunked && self.allocation_selected == Some(export.id);
        Step::Enter(Negotiated {
            flags: export.flags(chunked),
            structured: chunked,
            extended: self.extended,
            base_allocation: selected.then_some(meta::BASE_ALLOCATION_ID),
            no_zeroes: self.no_zeroes,
            tls: self.tls_on,
            ..Negotiated::new(export)
        })
    }

    /// Whether replies will come in chunks.
    const fn is_chunked(&self) -> bool {
        self.structured || self.extended
    }
}
