//! The server's side of the handshake, from the greeting to the transmission phase.
//!
//! [`Handshake`] owns the state that one client has negotiated so far. Callers pass in received
//! bytes and get back bytes to send and a [`HandshakeStep`]. Its invariants:
//!
//! - No option can break framing: the length in the option's header alone determines how many
//!   bytes the option takes. Rejected options are skipped, not parsed (N-03).
//! - No length from the wire drives an allocation. Accepted options are at most
//!   [`OPTION_BYTES_MAX`] long and are parsed in the caller's buffer; longer options are skipped
//!   as they arrive (N-07, P-03).
//! - Starting TLS discards everything negotiated in plain text (T-06).
//!
//! The price: the caller's buffer must hold [`HANDSHAKE_INPUT_BYTES_MAX`].

mod meta;
mod options;
mod reply;
mod step;

pub use step::{CloseReason, ExportRefusal, HandshakeStep};

use crate::{
    ExportInfo, Exports, Negotiated,
    proto::{
        CLIENT_FLAGS_BYTES, GREETING_MAGIC, OPTION_HEADER_BYTES, OPTION_MAGIC, handshake_flag,
        option,
    },
    wire::{WireReader, put_u16, put_u64},
};
use forebay_types::{VolumeId, limits::OPTION_BYTES_MAX};

/// Minimum capacity of the input buffer for [`Handshake::advance`].
pub const HANDSHAKE_INPUT_BYTES_MAX: usize = OPTION_HEADER_BYTES + OPTION_BYTES_MAX as usize;

/// Bytes of rejected options that one handshake skips before it drops the client. Twice the
/// largest payload a client may send; real options have a few hundred bytes.
pub const HANDSHAKE_SKIP_BYTES_MAX: u32 = 64 << 20;

/// Options that one handshake answers before it drops the client. Enough to list a thousand
/// exports and query each of them several times.
pub const HANDSHAKE_OPTIONS_MAX: u32 = 16 << 10;

/// A call that has produced this many bytes returns [`HandshakeStep::Flush`]. This bounds the
/// memory for a client that sends many small options with long replies (D-02).
const FLUSH_BYTES: usize = 64 << 10;

/// A listener's TLS mode. It never changes within a connection (T-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Tls {
    /// TLS is not offered, nor are exports that require it.
    #[default]
    Off,
    /// TLS is offered, and required for the exports that are marked so.
    Selective,
    /// TLS is required for everything.
    Forced,
}

/// The listener's settings for a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HandshakeConfig {
    /// The listener's TLS mode.
    pub tls: Tls,
}

/// What the handshake expects next in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandshakePhase {
    /// The client's flags.
    ClientFlags,
    /// An option's header.
    Header,
    /// The data of an accepted option.
    Body { option: u32, len: u32 },
    /// The data of a rejected option, which is skipped before the option is answered.
    Skip { option: u32, left: u32, reply: u32 },
    /// The start of TLS.
    AwaitTls,
    /// Nothing: the handshake has ended.
    Ended,
}

/// The result of one transition: the bytes consumed, and the step to return, or `None` to continue.
type HandshakeTurn = (usize, Option<HandshakeStep>);

/// The handshake of one connection. See the module's description.
#[derive(Debug)]
pub struct Handshake {
    config: HandshakeConfig,
    phase: HandshakePhase,
    /// The client supports the fixed newstyle handshake, which has error replies.
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
    /// A handshake in its initial state.
    pub const fn new(config: HandshakeConfig) -> Self {
        Self {
            config,
            phase: HandshakePhase::ClientFlags,
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

    /// Appends the server's greeting, which opens the handshake (H-01).
    pub fn greeting(&mut self, out: &mut Vec<u8>) {
        put_u64(out, GREETING_MAGIC);
        put_u64(out, OPTION_MAGIC);
        put_u16(out, handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    }

    /// Rejects every further option except `ABORT`, because the server is shutting down (N-08).
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// Continues inside TLS, and discards everything negotiated before (T-06).
    ///
    /// # Panics
    /// If the last step was not [`HandshakeStep::StartTls`].
    pub fn tls_established(&mut self) {
        assert_eq!(self.phase, HandshakePhase::AwaitTls, "TLS started without Step::StartTls");
        self.phase = HandshakePhase::Header;
        self.tls_on = true;
        self.structured = false;
        self.extended = false;
        self.allocation_selected = None;
    }

    /// Whether the session runs over TLS.
    pub const fn is_tls(&self) -> bool {
        self.tls_on
    }

    /// Consumes input, appends bytes to send to `out`, and returns the number of bytes consumed and
    /// the next step.
    pub fn advance(
        &mut self,
        input: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> (usize, HandshakeStep) {
        let mut consumed = 0;
        let out_start = out.len();
        loop {
            let turn_start = out.len();
            let (taken, step) = self.turn(&input[consumed..], exports, out);
            consumed += taken;
            debug_assert!(consumed <= input.len());
            match step {
                // Plain text after STARTTLS is a client bug or an injection attack. It must never
                // be processed as if it had arrived over TLS.
                Some(HandshakeStep::StartTls) if consumed < input.len() => {
                    out.truncate(turn_start);
                    self.phase = HandshakePhase::Ended;
                    return (consumed, HandshakeStep::Close(CloseReason::PlainText));
                }
                Some(step) => {
                    if matches!(step, HandshakeStep::Enter(_) | HandshakeStep::Close(_)) {
                        self.phase = HandshakePhase::Ended;
                    }
                    return (consumed, step);
                }
                None if out.len() - out_start >= FLUSH_BYTES => {
                    return (consumed, HandshakeStep::Flush);
                }
                None => {}
            }
        }
    }

    fn turn(&mut self, input: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> HandshakeTurn {
        match self.phase {
            HandshakePhase::ClientFlags => self.on_client_flags(input),
            HandshakePhase::Header => self.on_header(input),
            HandshakePhase::Body { option, len } => match input.get(..len as usize) {
                None => (0, Some(HandshakeStep::NeedMore)),
                Some(data) => {
                    self.phase = HandshakePhase::Header;
                    (data.len(), self.on_option(option, data, exports, out))
                }
            },
            HandshakePhase::Skip { option, left, reply } => {
                self.on_skipped(input.len(), option, left, reply, out)
            }
            HandshakePhase::AwaitTls if input.is_empty() => (0, Some(HandshakeStep::NeedMore)),
            HandshakePhase::AwaitTls => (0, Some(HandshakeStep::Close(CloseReason::PlainText))),
            HandshakePhase::Ended => (0, Some(HandshakeStep::Close(CloseReason::Ended))),
        }
    }

    fn on_client_flags(&mut self, input: &[u8]) -> HandshakeTurn {
        let Some(flags) = WireReader::new(input).u32() else {
            return (0, Some(HandshakeStep::NeedMore));
        };
        let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        if flags & !u32::from(known) != 0 {
            let close = HandshakeStep::Close(CloseReason::ClientFlags(flags));
            return (CLIENT_FLAGS_BYTES, Some(close));
        }
        self.fixed = flags & u32::from(handshake_flag::FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        self.phase = HandshakePhase::Header;
        (CLIENT_FLAGS_BYTES, None)
    }

    fn on_header(&mut self, input: &[u8]) -> HandshakeTurn {
        let mut reader = WireReader::new(input);
        let (Some(magic), Some(option), Some(len)) = (reader.u64(), reader.u32(), reader.u32())
        else {
            return (0, Some(HandshakeStep::NeedMore));
        };
        let taken = OPTION_HEADER_BYTES;
        if magic != OPTION_MAGIC {
            return (taken, Some(HandshakeStep::Close(CloseReason::OptionMagic(magic))));
        }
        if self.options_left == 0 {
            return (taken, Some(HandshakeStep::Close(CloseReason::OptionCount)));
        }
        self.options_left -= 1;
        match self.check_header(option, len) {
            Ok(()) => self.phase = HandshakePhase::Body { option, len },
            Err(options::Rejected::Close(refusal)) => {
                return (taken, Some(HandshakeStep::Close(CloseReason::ExportRefused(refusal))));
            }
            Err(options::Rejected::Answer(reply)) => {
                let Some(skip_bytes_left) = self.skip_bytes_left.checked_sub(len) else {
                    return (taken, Some(HandshakeStep::Close(CloseReason::OptionLength(len))));
                };
                self.skip_bytes_left = skip_bytes_left;
                self.phase = HandshakePhase::Skip { option, left: len, reply };
            }
        }
        (taken, None)
    }

    /// Skips the data of a rejected option, then answers it.
    fn on_skipped(
        &mut self,
        input_len: usize,
        option: u32,
        left: u32,
        reply: u32,
        out: &mut Vec<u8>,
    ) -> HandshakeTurn {
        let passed = input_len.min(left as usize);
        let left = left - passed as u32;
        if left > 0 {
            self.phase = HandshakePhase::Skip { option, left, reply };
            return (passed, Some(HandshakeStep::NeedMore));
        }
        self.phase = HandshakePhase::Header;
        reply::put_final(out, option, reply);
        let aborted = option == option::ABORT;
        (passed, aborted.then_some(HandshakeStep::Close(CloseReason::Aborted)))
    }

    /// Whether TLS is offered to this client. A client without fixed newstyle cannot start TLS
    /// (H-04), so it has no access to exports that require TLS.
    fn tls_offered(&self) -> bool {
        self.fixed && self.config.tls != Tls::Off
    }

    /// Whether this session may list or enter the export.
    fn may_see(&self, export: &ExportInfo) -> bool {
        self.tls_on || !export.tls_only
    }

    /// Enters the export under the terms negotiated so far.
    fn enter(&self, export: &ExportInfo) -> HandshakeStep {
        let is_plain = !self.tls_on && (export.tls_only || self.config.tls == Tls::Forced);
        assert!(!is_plain, "an export that requires TLS is entered in plain text");
        let chunked = self.is_chunked();
        let selected = chunked && self.allocation_selected == Some(export.id);
        HandshakeStep::Enter(Negotiated {
            flags: export.flags(chunked),
            structured: chunked,
            extended: self.extended,
            base_allocation: selected.then_some(meta::BASE_ALLOCATION_ID),
            no_zeroes: self.no_zeroes,
            tls: self.tls_on,
            ..Negotiated::new(export)
        })
    }

    /// Whether replies will be chunked.
    const fn is_chunked(&self) -> bool {
        self.structured || self.extended
    }
}
