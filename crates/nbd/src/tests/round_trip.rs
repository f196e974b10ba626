//! The client against the server, for every combination of extensions.

use super::server::{ReadStyle, Server};
use crate::{
    NbdCommand, Tls,
    client::{self, ClientEvent, ExportRequest, OpenExport, ReplyParser},
    proto::{command_flag, export_flag},
};
use forebay_types::{IoError, IoResult};
use proptest::prelude::*;

/// A connected client.
struct Client {
    server: Server,
    opened: OpenExport,
    parser: ReplyParser,
    cookie: u64,
}

/// The outcome of a request: its result, the data of a read, the extents of a block status.
type Outcome = (IoResult, Vec<u8>, Vec<(u64, bool)>);

fn connect(config: client::ExportConfig, tls: Tls) -> Result<Client, client::OpenFailure> {
    let (mut input, mut out) = (Vec::new(), Vec::new());
    let mut server = Server::new(tls, &mut input);
    let mut handshake = client::ClientHandshake::new(config);
    loop {
        let (taken, step) = handshake.advance(&input, &mut out);
        input.drain(..taken);
        server.receive(&std::mem::take(&mut out), &mut input);
        match step {
            client::ClientStep::NeedMore => assert!(!input.is_empty(), "deadlock: both sides wait"),
            client::ClientStep::StartTls => {
                handshake.tls_established(&mut out);
                server.receive(&std::mem::take(&mut out), &mut input);
            }
            client::ClientStep::Enter(opened) => {
                assert!(input.is_empty());
                let parser = ReplyParser::new(&opened);
                return Ok(Client { server, opened, parser, cookie: 0 });
            }
            client::ClientStep::Fail(failure) => return Err(failure),
        }
    }
}

impl Client {
    fn call(
        &mut self,
        command: NbdCommand,
        flags: u16,
        offset: u64,
        len: u64,
        data: &[u8],
    ) -> Outcome {
        self.cookie += 1;
        let request = ExportRequest { cookie: self.cookie, command, flags, offset, len };
        let (mut out, mut input) = (Vec::new(), Vec::new());
        self.opened.put_request(&request, &mut out);
        out.extend_from_slice(data);
        self.parser.begin(&request);
        self.server.receive(&out, &mut input);
        let read_len = if command == NbdCommand::Read { len as usize } else { 0 };
        let (mut read, mut extents, mut at) = (vec![0xee; read_len], Vec::new(), 0);
        loop {
            let (taken, event) = self.parser.advance(&input[at..]);
            at += taken;
            match event {
                ClientEvent::Data { offset: from, len, .. } => {
                    let (from, len) = ((from - offset) as usize, len as usize);
                    read[from..from + len].copy_from_slice(&input[at..at + len]);
                    at += len;
                }
                ClientEvent::Hole { offset: from, len, .. } => {
                    let from = (from - offset) as usize;
                    read[from..from + len as usize].fill(0);
                }
                ClientEvent::Extents { extents: got, .. } => {
                    extents = got.iter().map(|extent| (extent.len, extent.zero)).collect();
                }
                ClientEvent::Error { .. } => {}
                ClientEvent::Done { cookie, result } => {
                    assert_eq!((cookie, at), (self.cookie, input.len()));
                    return (result, read, extents);
                }
                event => panic!("{event:?}"),
            }
        }
    }
}

fn config(export: &str) -> client::ExportConfig {
    client::ExportConfig { export: export.into(), ..Default::default() }
}

#[test]
fn every_extension_can_be_negotiated() {
    for (extended, base_allocation, tls) in
        (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0))
    {
        let config = client::ExportConfig { extended, base_allocation, tls, ..config("x") };
        let client = connect(config, Tls::Selective).unwrap();
        let terms = client.server.terms.unwrap();
        assert_eq!(client.opened, super::server::opened(&terms));
        assert_eq!((terms.extended, terms.tls), (extended, tls));
        assert_eq!(terms.base_allocation.is_some(), base_allocation);
        assert!(client.opened.can(export_flag::SEND_DF));
    }
}

#[test]
fn client_can_do_without_every_extension() {
    let (simple, extended, base_allocation) = (true, true, true);
    let config = client::ExportConfig { simple, extended, base_allocation, ..config("x") };
    let client = connect(config, Tls::Off).unwrap();
    assert!(!client.opened.structured && !client.opened.extended);
    assert!(client.opened.base_allocation.is_none());
    assert_eq!(client.opened, super::server::opened(&client.server.terms.unwrap()));
}

#[test]
fn client_gets_the_text_of_a_rejection() {
    let failure = connect(config("nope"), Tls::Off).err().unwrap();
    assert_eq!(
        failure.to_string(),
        "the server rejected option 7 with 0x80000006: \
         no export of this name; LIST shows the available exports"
    );
    let refused = |config, tls| connect(config, tls).is_err();
    assert!(refused(config("secret"), Tls::Selective));
    assert!(refused(config("x"), Tls::Forced));
    assert!(refused(client::ExportConfig { tls: true, ..config("x") }, Tls::Off));
    assert!(!refused(client::ExportConfig { tls: true, ..config("secret") }, Tls::Forced));
}

#[test]
fn client_gets_errors_in_every_reply_form() {
    for extended in [false, true] {
        let mut client =
            connect(client::ExportConfig { extended, ..config("x") }, Tls::Off).unwrap();
        client.server.bad_byte = Some(5000);
        let (result, ..) = client.call(NbdCommand::Read, 0, 4096, 4096, b"");
        assert_eq!(result, Err(IoError::Io));
        let (result, ..) = client.call(NbdCommand::Write, 0, 1 << 20, 512, &[1; 512]);
        assert_eq!(result, Err(IoError::NoSpace));
        let (result, ..) = client.call(NbdCommand::BlockStatus, 0, 0, 512, b"");
        assert_eq!(result, Err(IoError::Invalid), "M-06");
        let (result, ..) = client.call(NbdCommand::Flush, 0, 0, 0, b"");
        assert_eq!(result, Ok(()), "framing is intact");
    }
}

#[derive(Clone, Debug)]
struct Op {
    command: NbdCommand,
    sector: u64,
    sectors: u64,
    fill: u8,
    flag: bool,
}

fn op() -> impl Strategy<Value = Op> {
    let command = prop::sample::select(vec![
        NbdCommand::Read,
        NbdCommand::Read,
        NbdCommand::Write,
        NbdCommand::Write,
        NbdCommand::WriteZeroes,
        NbdCommand::Trim,
        NbdCommand::Cache,
        NbdCommand::Flush,
        NbdCommand::BlockStatus,
    ]);
    (command, 0u64..40, 1u64..20, 0u8..3, any::<bool>()).prop_map(
        |(command, sector, sectors, fill, flag)| Op { command, sector, sectors, fill, flag },
    )
}

proptest! {
    /// Reads through both codecs agree with a model disk.
    #[test]
    fn reads_return_the_last_write(
        ops in prop::collection::vec(op(), 1..40),
        extended: bool,
        pieces: bool,
    ) {
        let config = client::ExportConfig { extended, base_allocation: true, ..config("x") };
        let mut client = connect(config, Tls::Off).unwrap();
        client.server.style = if pieces { ReadStyle::Pieces } else { ReadStyle::Whole };
        let mut disk = vec![0u8; 64 * 512];
        for Op { command, sector, sectors, fill, flag } in ops {
            let (offset, len) = (sector * 512, sectors * 512);
            let range = offset as usize..(offset + len) as usize;
            let data = if command == NbdCommand::Write { vec![fill; len as usize] } else { vec![] };
            let flags = match command {
                NbdCommand::Read if flag => command_flag::DF,
                NbdCommand::BlockStatus if flag => command_flag::REQ_ONE,
                NbdCommand::WriteZeroes if flag => command_flag::FAST_ZERO,
                _ => 0,
            };
            let (offset, len) = if command == NbdCommand::Flush { (0, 0) } else { (offset, len) };
            let (result, read, extents) = client.call(command, flags, offset, len, &data);
            prop_assert_eq!(result, Ok(()));
            match command {
                NbdCommand::Read => prop_assert_eq!(&read[..], &disk[range]),
                NbdCommand::Write => disk[range].fill(fill),
                NbdCommand::WriteZeroes | NbdCommand::Trim => disk[range].fill(0),
                NbdCommand::BlockStatus => {
                    let mut at = range.start;
                    for (len, zero) in extents {
                        let piece = &disk[at..at + len as usize];
                        prop_assert!(piece.chunks(512).all(|s| s.iter().all(|&b| b == 0) == zero));
                        at += len as usize;
                    }
                    prop_assert!(at > range.start && (flag || at == range.end));
                }
                _ => {}
            }
        }
        prop_assert_eq!(client.parser.pending_count(), 0);
    }
}
