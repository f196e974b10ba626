//! The client against the server, for every combination of extensions.

use super::server::{ReadStyle, Server};
use crate::{
    Command, Tls,
    client::{self, Event, Opened, ReplyParser, Request},
    proto::{command_flag, export_flag},
};
use forebay_types::{IoError, IoResult};
use proptest::prelude::*;

/// A connected client.
struct Client {
    server: Server,
    opened: Opened,
    parser: ReplyParser,
    cookie: u64,
}

/// The outcome of a request: its result, the data of a read, the extents of a block status.
type Outcome = (IoResult, Vec<u8>, Vec<(u64, bool)>);

fn connect(config: client::Config, tls: Tls) -> Result<Client, client::Failure> {
    let (mut input, mut out) = (Vec::new(), Vec::new());
    let mut server = Server::new(tls, &mut input);
    let mut handshake = client::Handshake::new(config);
    loop {
        let (taken, step) = handshake.advance(&input, &mut out);
        input.drain(..taken);
        server.receive(&std::mem::take(&mut out), &mut input);
        match step {
            client::Step::NeedMore => assert!(!input.is_empty(), "deadlock: both sides wait"),
            client::Step::StartTls => {
                handshake.tls_established(&mut out);
                server.receive(&std::mem::take(&mut out), &mut input);
            }
            client::Step::Enter(opened) => {
                assert!(input.is_empty());
                let parser = ReplyParser::new(&opened);
                return Ok(Client { server, opened, parser, cookie: 0 });
            }
            client::Step::Fail(failure) => return Err(failure),
        }
    }
}

impl Client {
    fn call(
        &mut self,
        command: Command,
        flags: u16,
        offset: u64,
        len: u64,
        data: &[u8],
    ) -> Outcome {
        self.cookie += 1;
        let request = Request { cookie: self.cookie, command, flags, offset, len };
        let (mut out, mut input) = (Vec::new(), Vec::new());
        self.opened.put_request(&request, &mut out);
        out.extend_from_slice(data);
        self.parser.begin(&request);
        self.server.receive(&out, &mut input);
        let read_len = if command == Command::Read { len as usize } else { 0 };
        let (mut read, mut extents, mut at) = (vec![0xee; read_len], Vec::new(), 0);
        loop {
            let (taken, event) = self.parser.advance(&input[at..]);
            at += taken;
            match event {
                Event::Data { offset: from, len, .. } => {
                    let (from, len) = ((from - offset) as usize, len as usize);
                    read[from..from + len].copy_from_slice(&input[at..at + len]);
                    at += len;
                }
                Event::Hole { offset: from, len, .. } => {
                    let from = (from - offset) as usize;
                    read[from..from + len as usize].fill(0);
                }
                Event::Extents { extents: got, .. } => {
                    extents = got.iter().map(|extent| (extent.len, extent.zero)).collect();
                }
                Event::Error { .. } => {}
                Event::Done { cookie, result } => {
                    assert_eq!((cookie, at), (self.cookie, input.len()));
                    return (result, read, extents);
                }
                event => panic!("{event:?}"),
            }
        }
    }
}

fn config(export: &str) -> client::Config {
    client::Config { export: export.into(), ..Default::default() }
}

#[test]
fn every_extension_can_be_negotiated() {
    for (extended, base_allocation, tls) in
        (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0))
    {
        let config = client::Config { extended, base_allocation, tls, ..config("x") };
        let client = connect(config, Tls::Selective).unwrap();
        let terms = client.server.terms.unwrap();
        assert_eq!(client.opened, super::server::opened(&terms));
        assert_eq!((terms.extended, terms.tls), (extended, tls));
        assert_eq!(terms.base_allocation.is_some(), base_allocation);
        assert!(client.opened.can(export_flag::SEND_DF));
    }
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
    assert!(refused(client::Config { tls: true, ..config("x") }, Tls::Off));
    assert!(!refused(client::Config { tls: true, ..config("secret") }, Tls::Forced));
}

#[test]
fn client_gets_errors_in_every_reply_form() {
    for extended in [false, true] {
        let mut client = connect(client::Config { extended, ..config("x") }, Tls::Off).unwrap();
        client.server.bad_byte = Some(5000);
        let (result, ..) = client.call(Command::Read, 0, 4096, 4096, b"");
        assert_eq!(result, Err(IoError::Io));
        let (result, ..) = client.call(Command::Write, 0, 1 << 20, 512, &[1; 512]);
        assert_eq!(result, Err(IoError::NoSpace));
        let (result, ..) = client.call(Command::BlockStatus, 0, 0, 512, b"");
        assert_eq!(result, Err(IoError::Invalid), "M-06");
        let (result, ..) = client.call(Command::Flush, 0, 0, 0, b"");
        assert_eq!(result, Ok(()), "framing is intact");
    }
}

#[derive(Clone, Debug)]
struct Op {
    command: Command,
    sector: u64,
    sectors: u64,
    fill: u8,
    flag: bool,
}

fn op() -> impl Strategy<Value = Op> {
    let command = prop::sample::select(vec![
        Command::Read,
        Command::Read,
        Command::Write,
        Command::Write,
        Command::WriteZeroes,
        Command::Trim,
        Command::Cache,
        Command::Flush,
        Command::BlockStatus,
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
        let config = client::Config { extended, base_allocation: true, ..config("x") };
        let mut client = connect(config, Tls::Off).unwrap();
        client.server.style = if pieces { ReadStyle::Pieces } else { ReadStyle::Whole };
        let mut disk = vec![0u8; 64 * 512];
        for Op { command, sector, sectors, fill, flag } in ops {
            let (offset, len) = (sector * 512, sectors * 512);
            let range = offset as usize..(offset + len) as usize;
            let data = if command == Command::Write { vec![fill; len as usize] } else { vec![] };
            let flags = match command {
                Command::Read if flag => command_flag::DF,
                Command::BlockStatus if flag => command_flag::REQ_ONE,
                Command::WriteZeroes if flag => command_flag::FAST_ZERO,
                _ => 0,
            };
            let (offset, len) = if command == Command::Flush { (0, 0) } else { (offset, len) };
            let (result, read, extents) = client.call(command, flags, offset, len, &data);
            prop_assert_eq!(result, Ok(()));
            match command {
                Command::Read => prop_assert_eq!(&read[..], &disk[range]),
                Command::Write => disk[range].fill(fill),
                Command::WriteZeroes | Command::Trim => disk[range].fill(0),
                Command::BlockStatus => {
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
