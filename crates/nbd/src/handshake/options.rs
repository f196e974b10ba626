//! The options: which ones the handshake accepts, and its reply to each.

use super::{ExportRefusal, Handshake, HandshakePhase, HandshakeStep, Tls, reply};
use crate::{
    ExportInfo, Exports,
    handshake::CloseReason,
    proto::{EXPORT_NAME_PADDING_BYTES, STRING_BYTES_MAX, info, option, option_reply},
    wire::{WireReader, put_u16, put_u32, put_u64, text},
};
use forebay_types::limits::OPTION_BYTES_MAX;

/// How to reject an option without reading its data.
pub(super) enum Rejected {
    /// Skip the data, then send this reply.
    Answer(u32),
    /// Close the connection, because the option has no error reply.
    Close(ExportRefusal),
}

/// An option reply with the error bit set.
type OptionError = u32;

impl Handshake {
    /// Accepts or rejects an option by its header alone.
    pub(super) fn check_header(&mut self, option: u32, len: u32) -> Result<(), Rejected> {
        if option == option::SET_META_CONTEXT {
            // Each SET_META_CONTEXT replaces the selection, even if it fails (M-04).
            self.allocation_selected = None;
        }
        if option == option::ABORT {
            return Err(Rejected::Answer(option_reply::ACK));
        }
        if self.shutting_down {
            return Err(refuse(option, option_reply::ERR_SHUTDOWN, ExportRefusal::ShuttingDown));
        }
        if self.config.tls == Tls::Forced && !self.tls_on && option != option::STARTTLS {
            // A client without fixed newstyle cannot start TLS (H-04, T-02).
            let error =
                if self.fixed { option_reply::ERR_TLS_REQD } else { option_reply::ERR_POLICY };
            return Err(refuse(option, error, ExportRefusal::TlsRequired));
        }
        match option {
            option::EXPORT_NAME if len as usize > STRING_BYTES_MAX => {
                Err(Rejected::Close(ExportRefusal::Name))
            }
            option::EXPORT_NAME if self.extended => {
                Err(Rejected::Close(ExportRefusal::ExtendedHeaders))
            }
            option::LIST
            | option::STARTTLS
            | option::STRUCTURED_REPLY
            | option::EXTENDED_HEADERS
                if len > 0 =>
            {
                Err(Rejected::Answer(option_reply::ERR_INVALID))
            }
            option::EXPORT_NAME
            | option::LIST
            | option::STARTTLS
            | option::STRUCTURED_REPLY
            | option::EXTENDED_HEADERS => Ok(()),
            option::INFO | option::GO | option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                let fits = len <= OPTION_BYTES_MAX;
                if fits { Ok(()) } else { Err(Rejected::Answer(option_reply::ERR_TOO_BIG)) }
            }
            _ => Err(Rejected::Answer(option_reply::ERR_UNSUP)),
        }
    }

    /// Serves an option that [`Self::check_header`] accepted and whose data is complete.
    pub(super) fn on_option(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Option<HandshakeStep> {
        match option {
            option::EXPORT_NAME => return Some(self.on_export_name(data, exports, out)),
            option::LIST => self.on_list(exports, out),
            option::STARTTLS => return self.on_starttls(out),
            option::INFO | option::GO => return self.on_info_or_go(option, data, exports, out),
            option::STRUCTURED_REPLY if self.extended => {
                reply::put_final(out, option, option_reply::ERR_EXT_HEADER_REQD);
            }
            option::STRUCTURED_REPLY => {
                self.structured = true;
                reply::put_final(out, option, option_reply::ACK);
            }
            option::EXTENDED_HEADERS => {
                self.extended = true;
                reply::put_final(out, option, option_reply::ACK);
            }
            _ => {
                let result = self.on_meta_context(option, data, exports, out);
                reply::put_final(out, option, result.err().unwrap_or(option_reply::ACK));
            }
        }
        None
    }

    fn on_export_name(
        &self,
        data: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> HandshakeStep {
        let export = match self.find(data, exports) {
            Ok(export) => export,
            Err(refusal) => return HandshakeStep::Close(CloseReason::ExportRefused(refusal)),
        };
        put_u64(out, export.size_bytes);
        put_u16(out, export.flags(self.is_chunked()));
        if !self.no_zeroes {
            out.extend_from_slice(&[0; EXPORT_NAME_PADDING_BYTES]);
        }
        self.enter(&export)
    }

    /// Lists the exports that this session may see. Exports that require TLS are omitted on a
    /// plain-text session (T-08).
    fn on_list(&self, exports: &dyn Exports, out: &mut Vec<u8>) {
        exports.list(&mut |export| {
            if !self.may_see(export) || !export.is_valid() {
                return;
            }
            let name_len = export.name.len() as u32;
            let len = 4 + name_len + export.description.len() as u32;
            reply::put_header(out, option::LIST, option_reply::SERVER, len);
            put_u32(out, name_len);
            out.extend_from_slice(export.name.as_bytes());
            out.extend_from_slice(export.description.as_bytes());
        });
        reply::put_final(out, option::LIST, option_reply::ACK);
    }

    fn on_starttls(&mut self, out: &mut Vec<u8>) -> Option<HandshakeStep> {
        if !self.tls_offered() {
            reply::put_final(out, option::STARTTLS, option_reply::ERR_POLICY);
            return None;
        }
        if self.tls_on {
            reply::put_final(out, option::STARTTLS, option_reply::ERR_INVALID);
            return None;
        }
        self.phase = HandshakePhase::AwaitTls;
        reply::put_final(out, option::STARTTLS, option_reply::ACK);
        Some(HandshakeStep::StartTls)
    }

    fn on_info_or_go(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Option<HandshakeStep> {
        match self.describe(option, data, exports, out) {
            Ok(export) => {
                reply::put_final(out, option, option_reply::ACK);
                (option == option::GO).then(|| self.enter(&export))
            }
            Err(error) => {
                reply::put_final(out, option, error);
                None
            }
        }
    }

    /// Appends the requested information about an export. Appends nothing on error (I-04).
    fn describe(
        &self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Result<ExportInfo, OptionError> {
        let query = InfoQuery::parse(data).ok_or(option_reply::ERR_INVALID)?;
        let export = self.find(query.name, exports).map_err(|refusal| match refusal {
            ExportRefusal::Name => option_reply::ERR_INVALID,
            // The protocol allows TLS_REQD only if TLS was offered (T-02).
            ExportRefusal::TlsRequired if self.tls_offered() => option_reply::ERR_TLS_REQD,
            ExportRefusal::NotServable => option_reply::ERR_PLATFORM,
            _ => option_reply::ERR_UNKNOWN,
        })?;
        reply::put_header(out, option, option_reply::INFO, 12);
        put_u16(out, info::EXPORT);
        put_u64(out, export.size_bytes);
        put_u16(out, export.flags(self.is_chunked()));
        if query.wants(info::NAME) {
            reply::put_info_text(out, option, info::NAME, &export.name);
        }
        if query.wants(info::DESCRIPTION) {
            reply::put_info_text(out, option, info::DESCRIPTION, &export.description);
        }
        if query.wants(info::BLOCK_SIZE) {
            reply::put_header(out, option, option_reply::INFO, 14);
            put_u16(out, info::BLOCK_SIZE);
            put_u32(out, export.block_min);
            put_u32(out, export.block_preferred);
            put_u32(out, export.payload_max);
        }
        Ok(export)
    }

    /// Looks up an export by its name from the wire, if this session may enter it.
    pub(super) fn find(
        &self,
        name: &[u8],
        exports: &dyn Exports,
    ) -> Result<ExportInfo, ExportRefusal> {
        let name = text(name).ok_or(ExportRefusal::Name)?;
        let export = exports.find(name).ok_or(ExportRefusal::Unknown)?;
        if !self.may_see(&export) {
            Err(ExportRefusal::TlsRequired)
        } else if !export.is_valid() {
            Err(ExportRefusal::NotServable)
        } else {
            Ok(export)
        }
    }
}

/// Rejects an option with an error, or by closing if the option has no error reply.
fn refuse(option: u32, error: OptionError, refusal: ExportRefusal) -> Rejected {
    if option == option::EXPORT_NAME { Rejected::Close(refusal) } else { Rejected::Answer(error) }
}

/// The data of `INFO` and `GO`.
struct InfoQuery<'a> {
    name: &'a [u8],
    /// The requested kinds of information, two bytes each.
    kinds: &'a [u8],
}

impl<'a> InfoQuery<'a> {
    /// Returns `None` unless the lengths add up to exactly the data (I-01).
    fn parse(data: &'a [u8]) -> Option<Self> {
        let mut reader = WireReader::new(data);
        let name_len = reader.u32()?;
        let name = reader.bytes(name_len)?;
        let kind_count = reader.u16()?;
        let kinds = reader.bytes(u32::from(kind_count) * 2)?;
        reader.is_empty().then_some(Self { name, kinds })
    }

    fn wants(&self, kind: u16) -> bool {
        self.kinds.chunks_exact(2).any(|asked| asked == kind.to_be_bytes())
    }
}
