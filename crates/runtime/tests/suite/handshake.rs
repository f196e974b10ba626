//! The handshake, with valid and invalid clients. Numbers such as I-04 name requirements of the
//! protocol, as in `forebay-nbd`.

use crate::common::client::{Client, config, connect};
use crate::common::raw::{
    ask, client_flags, connect_to, go_data, greeted, greeting, is_closed, option, option_claiming,
    option_reply, request, simple_reply,
};
use crate::server::{Server, settings};
use forebay_backend::MemoryBackend;
use forebay_nbd::client::{ExportConfig, OpenFailure};
use forebay_nbd::proto::{self, command, info, option_reply as kind};
use forebay_runtime::Engine;
use forebay_types::Mode;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

on_both_engines! {
    an_export_is_entered_with_every_combination_of_options,
    unknown_export_names_are_answered,
    the_empty_name_means_the_only_export,
    exports_are_listed_and_described,
    unknown_options_keep_the_stream_in_sync,
    a_protocol_error_ends_the_handshake,
    a_client_may_disconnect_at_any_byte,
    more_exports_than_one_message_holds_are_listed,
}

const MIB: u64 = 1 << 20;

fn server(engine: Engine) -> Server {
    let server = Server::start(engine);
    server.add_memory("disk", MIB, Mode::WriteBack);
    server.add_memory("other", 2 * MIB, Mode::WriteThrough);
    server
}

fn an_export_is_entered_with_every_combination_of_options(engine: Engine) {
    let server = server(engine);
    for extended in [false, true] {
        for base_allocation in [false, true] {
            let options = ExportConfig { extended, base_allocation, ..config("disk") };
            let mut client = Client::enter(connect(&server.socket), &options).unwrap();
            assert_eq!(client.opened.size_bytes, MIB);
            assert_eq!(client.opened.extended, extended);
            assert_eq!(client.opened.base_allocation.is_some(), base_allocation);
            assert_eq!((client.opened.block_min, client.opened.block_preferred), (512, 4096));
            assert_eq!(client.opened.payload_max, 32 << 20);
            assert!(client.opened.can(proto::export_flag::CAN_MULTI_CONN));
            assert_eq!(client.write(0, &[1; 1024]), Ok(()));
            assert_eq!(client.read(512, 512), Ok(vec![1; 512]));
            client.disconnect();
        }
    }
    for (flags, zeroes) in [(1u32, 124), (3, 0), (0, 124)] {
        let mut stream = connect(&server.socket);
        greeting(&mut stream);
        stream.write_all(&flags.to_be_bytes()).unwrap();
        stream.write_all(&option(proto::option::EXPORT_NAME, b"disk")).unwrap();
        let mut reply = vec![0; 10 + zeroes];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..8], MIB.to_be_bytes());
        assert!(reply[10..].iter().all(|&byte| byte == 0));
        stream.write_all(&request(command::FLUSH, 0, 7, 0, 0)).unwrap();
        assert_eq!(simple_reply(&mut stream), (0, 7), "flags {flags}");
    }
}

fn unknown_export_names_are_answered(engine: Engine) {
    let server = server(engine);
    // I-04, G-01: one session asks for many wrong names, and then for a right one.
    let mut stream = greeted(&server.socket);
    let long = "x".repeat(4096);
    for name in ["dis", "disk2", "", &long[..257], &long] {
        let (replies, last) = ask(&mut stream, proto::option::GO, &go_data(name, &[]));
        assert_eq!((replies.len(), last), (0, kind::ERR_UNKNOWN), "{} bytes", name.len());
    }
    let too_long = "x".repeat(5000);
    let (_, last) = ask(&mut stream, proto::option::INFO, &go_data(&too_long, &[]));
    assert!(last & kind::ERROR_BIT != 0);
    // I-01: lengths that do not add up.
    for data in [&b""[..], &[0, 0, 0, 9, b'x', 0, 0], &[0xff; 12], &[0, 0, 0, 0, 0, 9]] {
        assert_eq!(ask(&mut stream, proto::option::GO, data).1, kind::ERR_INVALID);
    }
    assert_eq!(ask(&mut stream, proto::option::GO, &go_data("disk", &[])).1, kind::ACK);
    // there is no error message for the older option.
    for name in ["dis", "", &long] {
        let mut stream = greeted(&server.socket);
        stream.write_all(&option(proto::option::EXPORT_NAME, name.as_bytes())).unwrap();
        assert!(is_closed(&mut stream));
    }
    let mut stream = greeted(&server.socket);
    stream.write_all(&option_claiming(proto::option::EXPORT_NAME, u32::MAX, b"disk")).unwrap();
    assert!(is_closed(&mut stream), "the server does not wait for a name of 4 GiB");
}

fn the_empty_name_means_the_only_export(engine: Engine) {
    let server = Server::start(engine);
    let options = config("");
    assert!(matches!(
        Client::enter(connect(&server.socket), &options).err(),
        Some(OpenFailure::Refused { .. })
    ));
    server.add_memory("disk", MIB, Mode::WriteBack);
    let client = Client::enter(connect(&server.socket), &options).unwrap();
    assert_eq!(client.opened.size_bytes, MIB);
    drop(client);
    server.runtime.volumes().remove("disk", |_| {}).unwrap();
    assert!(Client::enter(connect(&server.socket), &options).is_err());
}

fn exports_are_listed_and_described(engine: Engine) {
    let server = server(engine);
    let backend = Arc::new(MemoryBackend::new(512).unwrap());
    let mut volume = settings("tülü", backend, Mode::Bypass);
    volume.config.description = Some("spare parts".to_owned());
    volume.config.read_only = true;
    server.runtime.volumes().add(volume).unwrap();
    let mut stream = greeted(&server.socket);
    let (replies, last) = ask(&mut stream, proto::option::LIST, &[]);
    assert_eq!(last, kind::ACK);
    let names: Vec<&[u8]> =
        replies.iter().map(|reply| &reply[4..4 + usize::from(reply[3])]).collect();
    assert_eq!(names, [&b"disk"[..], b"other", "tülü".as_bytes()]);
    assert!(replies[2].ends_with(b"spare parts"));
    assert_eq!(ask(&mut stream, proto::option::LIST, b"x").1, kind::ERR_INVALID);
    let infos = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 4711];
    let (replies, last) = ask(&mut stream, proto::option::INFO, &go_data("tülü", &infos));
    assert_eq!((replies.len(), last), (4, kind::ACK));
    assert_eq!(replies[0][..10], [0, 0, 0, 0, 0, 0, 0, 0, 2, 0], "512 bytes");
    assert!(replies[0][11] & 2 != 0, "read-only");
    assert_eq!(ask(&mut stream, proto::option::ABORT, b"bye").1, kind::ACK);
    assert!(is_closed(&mut stream));
}

fn unknown_options_keep_the_stream_in_sync(engine: Engine) {
    let server = server(engine);
    let mut stream = greeted(&server.socket);
    for (number, len) in [(4u32, 0usize), (12, 1), (999, 65_537), (u32::MAX, 1 << 20)] {
        assert_eq!(ask(&mut stream, number, &vec![1; len]).1, kind::ERR_UNSUP, "{number}");
    }
    assert_eq!(ask(&mut stream, proto::option::STARTTLS, &[]).1, kind::ERR_POLICY, "T-02");
    let many = option(12, &[]).repeat(1000);
    stream.write_all(&many).unwrap();
    for _ in 0..1000 {
        assert_eq!(option_reply(&mut stream, 12).0, kind::ERR_UNSUP);
    }
    assert_eq!(ask(&mut stream, proto::option::GO, &go_data("disk", &[])).1, kind::ACK);
    stream.write_all(&request(command::FLUSH, 0, 1, 0, 0)).unwrap();
    assert_eq!(simple_reply(&mut stream), (0, 1));
}

fn a_protocol_error_ends_the_handshake(engine: Engine) {
    let server = server(engine);
    let broken: [&[u8]; 4] = [
        &[0xff; 4],
        &[0, 0, 0, 4],
        &[&client_flags()[..], b"NOTANOPTIONATALL"].concat(),
        &[&client_flags()[..], &option_claiming(999, u32::MAX, &[])].concat(),
    ];
    for bytes in broken {
        let mut stream = connect(&server.socket);
        greeting(&mut stream);
        stream.write_all(bytes).unwrap();
        assert!(is_closed(&mut stream), "{bytes:?}");
    }
    let mut client = server.client("disk");
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
}

fn a_client_may_disconnect_at_any_byte(engine: Engine) {
    let server = server(engine);
    let mut session = client_flags();
    session.extend_from_slice(&option(proto::option::STRUCTURED_REPLY, &[]));
    session.extend_from_slice(&option(proto::option::GO, &go_data("disk", &[info::BLOCK_SIZE])));
    session.extend_from_slice(&request(command::READ, 0, 1, 0, 65536));
    session.extend_from_slice(&request(command::WRITE, 0, 2, 0, 4));
    for len in 0..session.len() {
        let mut stream = connect(&server.socket);
        // P-14: some clients disconnect without reading the answer, so that the server writes to a
        // closed socket.
        if len % 2 == 0 {
            greeting(&mut stream);
        }
        stream.write_all(&session[..len]).unwrap();
    }
    let _stream = connect_to(&server.socket, "disk");
    crate::common::wait_until(
        "the closed connections are removed",
        crate::common::client::PATIENCE,
        || server.runtime.status().unwrap().connections == 1,
    );
}

/// How many lists of all exports a client requests without waiting for the answers.
const LISTS: usize = 300;

fn more_exports_than_one_message_holds_are_listed(engine: Engine) {
    let server = Server::start(engine);
    let backend = || Arc::new(MemoryBackend::new(512).unwrap());
    for number in 0..300 {
        let name = format!("{number:0>250}");
        let mut volume = settings(&name, backend(), Mode::WriteThrough);
        volume.config.description = Some("d".repeat(1000));
        server.runtime.volumes().add(volume).unwrap();
    }
    let mut stream = greeted(&server.socket);
    // D-02: many answers of 375 KB each are not all built at once, but all are sent.
    let begin = Instant::now();
    stream.write_all(&option(proto::option::LIST, &[]).repeat(LISTS)).unwrap();
    for _ in 0..LISTS {
        for _ in 0..300 {
            assert_eq!(option_reply(&mut stream, proto::option::LIST).0, kind::SERVER);
        }
        assert_eq!(option_reply(&mut stream, proto::option::LIST).0, kind::ACK);
    }
    // Input that waited for output continues as soon as there is space. If it continued only at the
    // next tick of an idle worker, half a second each, it would take 150 s; it takes one or two.
    assert!(begin.elapsed() < Duration::from_secs(100), "{:?}", begin.elapsed());
    assert_eq!(ask(&mut stream, proto::option::GO, &go_data(&"0".repeat(250), &[])).1, kind::ACK);
}
