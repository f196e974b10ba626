//! Opening an export: from the server's greeting to the transmission phase.
//!
//! The client sends one option at a time: TLS first if configured, then the form of the replies,
//! then the metadata contexts, then `GO`. The reply form and the contexts are optional: without
//! them the client continues. Without `GO` it falls back to `EXPORT_NAME`. It never falls back
//! from TLS to plain text (P-06).

use super::{OpenExport, OpenFailure, failure::REPLIES_MAX, option_reply::OptionReply};
use crate::{
    export::EXPORT_BYTES_MAX,
    proto::{
        BASE_ALLOCATION, EXPORT_NAME_PADDING_BYTES, GREETING_BYTES, GREETING_MAGIC, OLDSTYLE_MAGIC,
        OPTION_MAGIC, OPTION_REPLY_HEADER_BYTES, STRING_BYTES_MAX, export_flag, handshake_flag,
        info, option, option_reply,
    },
    wire::{WireReader, put_u16, put_u32, put_u64},
};
use forebay_types::{
    LINE_BYTES, SECTOR_BYTES,
    limits::{OPTION_BYTES_MAX, REQUEST_BYTES_MAX},
};

/// Minimum capacity of the input buffer for [`ClientHandshake::advance`].
pub const CLIENT_HANDSHAKE_INPUT_BYTES_MAX: usize =
    OPTION_REPLY_HEADER_BYTES + OPTION_BYTES_MAX as usize;

/// The export to open, and the extensions to request.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ExportConfig {
    /// Name of the export; empty for the server's default. At most 4096 bytes, no NUL.
    pub export: String,
    /// Whether TLS is required.
    pub tls: bool,
    /// Whether to do without chunked replies and extended headers, which the client of Linux does
    /// not know.
    pub simple: bool,
    /// Whether to request extended headers, unless `simple` is set.
    pub extended: bool,
    /// Whether to request `base:allocation`, which block status requires.
    pub base_allocation: bool,
}

/// What the caller must do next. For every step, send the appended output first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientStep {
    /// Receive more, and call again with the unconsumed and the new input.
    NeedMore,
    /// Start TLS, then call [`ClientHandshake::tls_established`]. All input was consumed.
    StartTls,
    /// The export is open. Unconsumed input is a protocol violation, which the reply parser will
    /// report.
    Enter(OpenExport),
    /// The handshake failed: close.
    Fail(OpenFailure),
}

/// What the client expects next from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientPhase {
    Greeting,
    /// Replies to this option.
    Option(u32),
    /// The answer to `EXPORT_NAME`, which has no framing.
    ExportName,
    Tls,
    Ended,
}

/// The client side of one connection's handshake.
#[derive(Debug)]
pub struct ClientHandshake {
    config: ExportConfig,
    phase: ClientPhase,
    no_zeroes: bool,
    replies: u32,
    /// Whether the server described the export before its ACK to `GO`.
    described: bool,
    opened: OpenExport,
}

type ClientTurn = Result<(usize, Option<ClientStep>), OpenFailure>;

impl ClientHandshake {
    /// A handshake in its initial state; the server speaks first.
    ///
    /// # Panics
    /// If the export name is longer than 4096 bytes, the protocol's limit.
    pub fn new(config: ExportConfig) -> Self {
        assert!(config.export.len() <= STRING_BYTES_MAX, "export names have at most 4096 bytes");
        let opened = OpenExport {
            size_bytes: 0,
            flags: 0,
            structured: false,
            extended: false,
            base_allocation: None,
            tls: false,
            // The protocol's defaults for a server that reports no block sizes (L-01).
            block_min: 1,
            block_preferred: LINE_BYTES as u32,
            payload_max: REQUEST_BYTES_MAX as u32,
        };
        let (phase, no_zeroes, replies, described) = (ClientPhase::Greeting, false, 0, false);
        Self { config, phase, no_zeroes, replies, described, opened }
    }

    /// Continues inside TLS: appends the next option.
    ///
    /// # Panics
    /// If the last step was not [`ClientStep::StartTls`].
    pub fn tls_established(&mut self, out: &mut Vec<u8>) {
        assert_eq!(self.phase, ClientPhase::Tls, "TLS started without Step::StartTls");
        self.opened.tls = true;
        self.ask_for_form(out);
    }

    /// Consumes input, appends bytes to send to `out`, and returns the number of bytes consumed and
    /// the next step.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, ClientStep) {
        let mut consumed = 0;
        loop {
            let (taken, step) = match self.turn(&input[consumed..], out) {
                Ok(turn) => turn,
                Err(failure) => (0, Some(ClientStep::Fail(failure))),
            };
            consumed += taken;
            debug_assert!(consumed <= input.len(), "{consumed} bytes consumed");
            let step = match step {
                None => continue,
                // Plain text must never be processed as if it had arrived over TLS (P-06).
                Some(ClientStep::StartTls) if consumed < input.len() => {
                    ClientStep::Fail(OpenFailure::PlainText)
                }
                Some(step) => step,
            };
            if matches!(step, ClientStep::Enter(_) | ClientStep::Fail(_)) {
                self.phase = ClientPhase::Ended;
            }
            return (consumed, step);
        }
    }

    fn turn(&mut self, input: &[u8], out: &mut Vec<u8>) -> ClientTurn {
        match self.phase {
            ClientPhase::Greeting => self.on_greeting(input, out),
            ClientPhase::Option(option) => {
                let Some(reply) = OptionReply::parse(input, option)? else {
                    return Ok((0, Some(ClientStep::NeedMore)));
                };
                self.replies += 1;
                if self.replies > REPLIES_MAX {
                    return Err(OpenFailure::ReplyCount);
                }
                Ok((reply.taken, self.on_reply(option, &reply, out)?))
            }
            ClientPhase::ExportName => self.on_export_name(input),
            ClientPhase::Tls if input.is_empty() => Ok((0, Some(ClientStep::NeedMore))),
            ClientPhase::Tls => Err(OpenFailure::PlainText),
            ClientPhase::Ended => Err(OpenFailure::Ended),
        }
    }

    fn on_greeting(&mut self, input: &[u8], out: &mut Vec<u8>) -> ClientTurn {
        let mut reader = WireReader::new(input);
        let (Some(magic), Some(style), Some(flags)) = (reader.u64(), reader.u64(), reader.u16())
        else {
            return Ok((0, Some(ClientStep::NeedMore)));
        };
        match (magic, style) {
            (GREETING_MAGIC, OPTION_MAGIC) => {}
            (GREETING_MAGIC, OLDSTYLE_MAGIC) => return Err(OpenFailure::Oldstyle),
            _ => return Err(OpenFailure::Greeting(magic, style)),
        }
        let agreed = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        self.no_zeroes = agreed & handshake_flag::NO_ZEROES != 0;
        put_u32(out, u32::from(agreed));
        if agreed & handshake_flag::FIXED_NEWSTYLE == 0 {
            if self.config.tls {
                return Err(OpenFailure::NoTls);
            }
            self.ask_by_export_name(out);
        } else if self.config.tls {
            self.ask(option::STARTTLS, 0, out);
        } else {
            self.ask_for_form(out);
        }
        Ok((GREETING_BYTES, None))
    }

    /// Appends the header of an option, and expects its replies next.
    fn ask(&mut self, option: u32, len: u32, out: &mut Vec<u8>) {
        put_u64(out, OPTION_MAGIC);
        put_u32(out, option);
        put_u32(out, len);
        self.replies = 0;
        self.phase = ClientPhase::Option(option);
    }

    fn ask_for_form(&mut self, out: &mut Vec<u8>) {
        if self.config.simple {
            return self.ask_for_context_or_go(out);
        }
        let extended = self.config.extended;
        let form = if extended { option::EXTENDED_HEADERS } else { option::STRUCTURED_REPLY };
        self.ask(form, 0, out);
    }

    fn ask_for_context_or_go(&mut self, out: &mut Vec<u8>) {
        if self.config.base_allocation && self.opened.structured {
            let name_len = self.config.export.len() as u32;
            let query_len = BASE_ALLOCATION.len() as u32;
            self.ask(option::SET_META_CONTEXT, 4 + name_len + 4 + 4 + query_len, out);
            put_u32(out, name_len);
            out.extend_from_slice(self.config.export.as_bytes());
            put_u32(out, 1);
            put_u32(out, query_len);
            out.extend_from_slice(BASE_ALLOCATION.as_bytes());
        } else {
            self.ask_to_go(out);
        }
    }

    fn ask_to_go(&mut self, out: &mut Vec<u8>) {
        let name_len = self.config.export.len() as u32;
        self.ask(option::GO, 4 + name_len + 2 + 2, out);
        put_u32(out, name_len);
        out.extend_from_slice(self.config.export.as_bytes());
        put_u16(out, 1);
        put_u16(out, info::BLOCK_SIZE);
    }

    fn ask_by_export_name(&mut self, out: &mut Vec<u8>) {
        self.ask(option::EXPORT_NAME, self.config.export.len() as u32, out);
        out.extend_from_slice(self.config.export.as_bytes());
        self.phase = ClientPhase::ExportName;
    }

    fn on_reply(
        &mut self,
        option: u32,
        reply: &OptionReply<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<ClientStep>, OpenFailure> {
        let acked = reply.kind == option_reply::ACK;
        match option {
            option::STARTTLS if acked => {
                self.phase = ClientPhase::Tls;
                return Ok(Some(ClientStep::StartTls));
            }
            option::EXTENDED_HEADERS if acked => {
                (self.opened.extended, self.opened.structured) = (true, true);
                self.ask_for_context_or_go(out);
            }
            option::EXTENDED_HEADERS if reply.is_error() => {
                self.ask(option::STRUCTURED_REPLY, 0, out);
            }
            option::STRUCTURED_REPLY if acked || reply.is_error() => {
                self.opened.structured = acked;
                self.ask_for_context_or_go(out);
            }
            option::SET_META_CONTEXT if reply.kind == option_reply::META_CONTEXT => {
                self.on_context(reply)?;
            }
            option::SET_META_CONTEXT if acked => self.ask_to_go(out),
            option::SET_META_CONTEXT if reply.is_error() => {
                self.opened.base_allocation = None;
                self.ask_to_go(out);
            }
            option::GO if acked && self.described => {
                return Ok(Some(ClientStep::Enter(self.opened)));
            }
            option::GO if reply.kind == option_reply::INFO => self.on_info(reply)?,
            option::GO if reply.kind == option_reply::ERR_UNSUP && !self.opened.extended => {
                self.ask_by_export_name(out);
            }
            _ if reply.is_error() => return Err(reply.to_failure(option)),
            _ => return Err(OpenFailure::Reply { option, reply: reply.kind }),
        }
        Ok(None)
    }

    fn on_context(&mut self, reply: &OptionReply<'_>) -> Result<(), OpenFailure> {
        let malformed = OpenFailure::Reply { option: option::SET_META_CONTEXT, reply: reply.kind };
        let (id, name) = reply.data.split_first_chunk().ok_or(malformed)?;
        if name == BASE_ALLOCATION.as_bytes() {
            self.opened.base_allocation = Some(u32::from_be_bytes(*id));
        }
        Ok(())
    }

    fn on_info(&mut self, reply: &OptionReply<'_>) -> Result<(), OpenFailure> {
        let malformed = OpenFailure::Reply { option: option::GO, reply: reply.kind };
        let mut reader = WireReader::new(reply.data);
        match (reader.u16(), reply.data.len()) {
            (Some(info::EXPORT), 12) => {
                let (Some(size_bytes), Some(flags)) = (reader.u64(), reader.u16()) else {
                    return Err(malformed);
                };
                self.described = true;
                self.set_export(size_bytes, flags)
            }
            (Some(info::BLOCK_SIZE), 14) => {
                let (Some(min), Some(preferred), Some(payload)) =
                    (reader.u32(), reader.u32(), reader.u32())
                else {
                    return Err(malformed);
                };
                self.set_block_sizes(min, preferred, payload)
            }
            (None | Some(info::EXPORT | info::BLOCK_SIZE), _) => Err(malformed),
            _ => Ok(()),
        }
    }

    fn on_export_name(&mut self, input: &[u8]) -> ClientTurn {
        let padding_len = if self.no_zeroes { 0 } else { EXPORT_NAME_PADDING_BYTES };
        let len = 8 + 2 + padding_len;
        let mut reader = WireReader::new(input.get(..len).unwrap_or_default());
        let (Some(size_bytes), Some(flags)) = (reader.u64(), reader.u16()) else {
            return Ok((0, Some(ClientStep::NeedMore)));
        };
        self.set_export(size_bytes, flags)?;
        Ok((len, Some(ClientStep::Enter(self.opened))))
    }

    fn set_export(&mut self, size_bytes: u64, flags: u16) -> Result<(), OpenFailure> {
        if size_bytes > EXPORT_BYTES_MAX {
            return Err(OpenFailure::Size(size_bytes));
        }
        self.opened.size_bytes = size_bytes;
        self.opened.flags = if flags & export_flag::HAS_FLAGS != 0 { flags } else { 0 };
        Ok(())
    }

    /// Stores the block sizes if they are valid (I-09).
    fn set_block_sizes(
        &mut self,
        min: u32,
        preferred: u32,
        payload: u32,
    ) -> Result<(), OpenFailure> {
        let is_valid = min.is_power_of_two()
            && min <= 1 << 16
            && preferred.is_power_of_two()
            && preferred >= min.max(SECTOR_BYTES as u32)
            && u64::from(preferred) <= REQUEST_BYTES_MAX
            && payload >= preferred;
        if !is_valid {
            return Err(OpenFailure::BlockSizes { min, preferred, payload });
        }
        self.opened.block_min = min;
        self.opened.block_preferred = preferred;
        self.opened.payload_max = payload.min(REQUEST_BYTES_MAX as u32);
        Ok(())
    }
}
