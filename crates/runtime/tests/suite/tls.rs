//! TLS: required and optional, client certificates, and attacks on the handshake.

use crate::common::client::{Client, PATIENCE, advance, config, connect};
use crate::common::raw::{
    ask, client_flags, go_data, greeted, greeting, is_closed, option, request,
};
use crate::common::wait_until;
use crate::server::{Server, settings};
use forebay_backend::MemoryBackend;
use forebay_frontend_nbd::TlsSetup;
use forebay_nbd::client::{ClientHandshake, ClientStep, ExportConfig, OpenFailure};
use forebay_nbd::proto::{self, command, option_reply as kind};
use forebay_nbd::{NbdCommand, Tls};
use forebay_runtime::Engine;
use forebay_types::{Mode, TlsUse};
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

on_both_engines! {
    data_goes_through_both_versions_of_tls,
    a_forced_listener_answers_nothing_in_plain_text,
    a_selective_listener_hides_tls_only_volumes,
    a_listener_without_tls_refuses_to_start_it,
    clients_without_a_valid_certificate_are_refused,
    plain_text_after_starttls_is_ignored,
    options_negotiated_before_tls_are_reset,
    the_end_of_a_session_sends_close_notify,
    a_session_that_cannot_go_over_is_ended_with_close_notify,
    a_renewed_certificate_serves_new_clients,
    garbage_instead_of_tls_ends_the_connection,
    bytes_after_the_end_of_tls_do_not_hang_the_worker,
    a_tls_client_that_never_reads_does_not_delay_other_clients,
    a_client_may_disconnect_during_the_tls_handshake,
    a_client_that_sends_nothing_after_starttls_is_removed,
}

const MIB: u64 = 1 << 20;

type TlsStream = StreamOwned<ClientConnection, UnixStream>;

/// A certificate authority.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
}

/// A certificate chain and its key.
struct Identity(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let der = params.self_signed(&key).unwrap().der().clone();
        Self { issuer: Issuer::new(params, key), der }
    }

    fn identity(&self, years: (i32, i32)) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Identity(vec![certificate.der().clone()], key)
    }

    fn valid(&self) -> Identity {
        self.identity((2000, 4000))
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        Arc::new(roots)
    }

    fn server(&self, clients: Option<&Self>) -> ServerConfig {
        let Identity(chain, key) = self.valid();
        let builder = ServerConfig::builder();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder(authority.roots()).build().unwrap(),
            ),
        };
        builder.with_single_cert(chain, key).unwrap()
    }

    fn client(&self, identity: Option<Identity>) -> Arc<ClientConfig> {
        let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
        self.client_of(&versions, identity)
    }

    fn client_of(
        &self,
        versions: &[&'static rustls::SupportedProtocolVersion],
        identity: Option<Identity>,
    ) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder_with_protocol_versions(versions)
            .with_root_certificates(self.roots());
        Arc::new(match identity {
            None => builder.with_no_client_auth(),
            Some(Identity(chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        })
    }
}

/// A server with a TLS socket in addition to the plain one.
fn tls_server(engine: Engine, setup: TlsSetup, tls_only: bool) -> (Server, PathBuf) {
    let server = Server::start(engine);
    let disk = Arc::new(MemoryBackend::new(80 * MIB).unwrap());
    let mut volume = settings("disk", disk, Mode::WriteBack);
    volume.config.tls = if tls_only { TlsUse::Required } else { TlsUse::Optional };
    server.runtime.volumes().add(volume).unwrap();
    server.add_memory("open", MIB, Mode::WriteBack);
    let socket = server.directory.path().join("tls.sock");
    server.listen(&socket, setup);
    (server, socket)
}

/// As [`tls_server`], with a certificate of a new authority.
fn certified_server(engine: Engine, policy: Tls, tls_only: bool) -> (Authority, Server, PathBuf) {
    let authority = Authority::new();
    let setup = TlsSetup::new(Some((policy, authority.server(None))));
    let (server, socket) = tls_server(engine, setup, tls_only);
    (authority, server, socket)
}

/// The TLS session after STARTTLS.
fn wrap(stream: UnixStream, config: &Arc<ClientConfig>) -> TlsStream {
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(Arc::clone(config), name).unwrap(), stream)
}

/// Enters an export over TLS.
fn enter(
    stream: UnixStream,
    tls: &Arc<ClientConfig>,
    options: &ExportConfig,
) -> Result<Client<TlsStream>, OpenFailure> {
    let mut stream = stream;
    let mut handshake = ClientHandshake::new(ExportConfig { tls: true, ..options.clone() });
    let (mut input, mut out) = (Vec::new(), Vec::new());
    match advance(&mut stream, &mut handshake, &mut input, &mut out) {
        ClientStep::StartTls => {}
        ClientStep::Fail(failure) => return Err(failure),
        step => panic!("an unexpected step: {step:?}"),
    }
    let mut stream = wrap(stream, tls);
    handshake.tls_established(&mut out);
    match advance(&mut stream, &mut handshake, &mut input, &mut out) {
        ClientStep::Enter(opened) => Ok(Client::opened(stream, opened, input)),
        ClientStep::Fail(failure) => Err(failure),
        step => panic!("an unexpected step: {step:?}"),
    }
}

fn data_goes_through_both_versions_of_tls(engine: Engine) {
    let (authority, server, socket) = certified_server(engine, Tls::Forced, false);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let tls = authority.client_of(&[version], None);
        let mut client = enter(connect(&socket), &tls, &config("disk")).unwrap();
        assert!(client.opened.tls);
        let data: Vec<u8> = (0..32 * MIB).map(|n| (n / 4096 + n) as u8).collect();
        assert_eq!(client.write(512, &data), Ok(()));
        assert_eq!(client.read(512, 32 * MIB), Ok(data.clone()));
        let cookies: Vec<u64> =
            (0..64).map(|n| client.send(NbdCommand::Read, 0, n * 65536, 65536, &[])).collect();
        for (n, cookie) in cookies.into_iter().enumerate().skip(1) {
            assert_eq!(client.wait(cookie).data, data[n * 65536 - 512..][..65536]);
        }
        assert_eq!(client.flush(), Ok(()));
    }
    let mut plain = server.client("disk");
    assert_eq!(plain.read(512, 1 << 10).unwrap()[..2], [0, 1], "the same volume in plain text");
    let encrypted = enter(
        connect(&socket),
        &authority.client_of(&[&rustls::version::TLS13], None),
        &config("disk"),
    );
    let listed = forebay_runtime::clients(&server.runtime).unwrap();
    // The clients of the loop may not have left yet.
    let last: Vec<_> = listed.iter().rev().take(2).map(|client| client.is_encrypted).collect();
    assert!(encrypted.is_ok() && last == [true, false], "{listed:?}");
}

fn a_forced_listener_answers_nothing_in_plain_text(engine: Engine) {
    let (_, _server, socket) = certified_server(engine, Tls::Forced, false);
    let mut stream = greeted(&socket);
    // T-03: for every option, known or unknown.
    for number in [3u32, 6, 7, 8, 9, 10, 11, 4711] {
        assert_eq!(ask(&mut stream, number, &go_data("disk", &[])).1, kind::ERR_TLS_REQD);
    }
    assert_eq!(ask(&mut stream, proto::option::ABORT, &[]).1, kind::ACK);
    let mut stream = greeted(&socket);
    stream.write_all(&option(proto::option::EXPORT_NAME, b"disk")).unwrap();
    assert!(is_closed(&mut stream));
}

fn a_selective_listener_hides_tls_only_volumes(engine: Engine) {
    let (authority, server, socket) = certified_server(engine, Tls::Selective, true);
    for socket in [&socket, &server.socket] {
        let mut stream = greeted(socket);
        let (names, _) = ask(&mut stream, proto::option::LIST, &[]);
        assert_eq!(names.len(), 1, "the TLS-only volume is not listed");
        let (_, last) = ask(&mut stream, proto::option::GO, &go_data("disk", &[]));
        assert!(last & kind::ERROR_BIT != 0);
        assert_eq!(ask(&mut stream, proto::option::GO, &go_data("open", &[])).1, kind::ACK);
    }
    let tls = authority.client(None);
    let mut client = enter(connect(&socket), &tls, &config("disk")).unwrap();
    assert_eq!(client.write(0, &[1; 512]), Ok(()));
    assert_eq!(enter(connect(&socket), &tls, &config("open")).unwrap().opened.size_bytes, MIB);
}

fn a_listener_without_tls_refuses_to_start_it(engine: Engine) {
    let authority = Authority::new();
    let (_server, socket) = tls_server(engine, TlsSetup::new(None), false);
    let refused = enter(connect(&socket), &authority.client(None), &config("disk")).err();
    assert!(matches!(refused, Some(OpenFailure::Refused { reply: kind::ERR_POLICY, .. })));
}

/// Whether a client with this configuration completes the TLS handshake.
fn is_accepted(socket: &std::path::Path, tls: &Arc<ClientConfig>) -> bool {
    let mut stream = greeted(socket);
    assert_eq!(ask(&mut stream, proto::option::STARTTLS, &[]).1, kind::ACK);
    let mut stream = wrap(stream, tls);
    // With TLS 1.3, the client sees a refusal only when it reads.
    let mut answer = [0; 20];
    stream.write_all(&option(proto::option::LIST, &[])).is_ok()
        && stream.read_exact(&mut answer).is_ok()
}

fn clients_without_a_valid_certificate_are_refused(engine: Engine) {
    let (servers, clients, others) = (Authority::new(), Authority::new(), Authority::new());
    let setup = TlsSetup::new(Some((Tls::Forced, servers.server(Some(&clients)))));
    let (_server, socket) = tls_server(engine, setup, false);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let with = |identity| servers.client_of(&[version], identity);
        assert!(is_accepted(&socket, &with(Some(clients.valid()))));
        assert!(!is_accepted(&socket, &with(None)), "P-12: none");
        assert!(!is_accepted(&socket, &with(Some(others.valid()))), "another authority");
        assert!(!is_accepted(&socket, &with(Some(clients.identity((2000, 2001))))), "expired");
        assert!(!is_accepted(&socket, &with(Some(clients.identity((3000, 3001))))), "not yet");
    }
}

fn plain_text_after_starttls_is_ignored(engine: Engine) {
    let (_, server, socket) = certified_server(engine, Tls::Selective, false);
    // P-06: in the same packet, and in one that follows at once.
    for split in [false, true] {
        let mut stream = connect(&socket);
        greeting(&mut stream);
        let start = [client_flags(), option(proto::option::STARTTLS, &[])].concat();
        let injected = [
            option(proto::option::GO, &go_data("disk", &[])),
            request(command::WRITE, 0, 1, 0, 512),
            vec![6; 512],
        ]
        .concat();
        if split {
            stream.write_all(&start).unwrap();
            let _ = stream.write_all(&injected);
        } else {
            stream.write_all(&[start, injected].concat()).unwrap();
        }
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        // An acknowledgement of STARTTLS and an alert at most: 20 and 7 bytes.
        assert!(said.len() <= 27, "{said:?}");
    }
    assert_eq!(server.client("disk").read(0, 512), Ok(vec![0; 512]));
}

fn options_negotiated_before_tls_are_reset(engine: Engine) {
    let (authority, _server, socket) = certified_server(engine, Tls::Selective, false);
    let mut stream = greeted(&socket);
    assert_eq!(ask(&mut stream, proto::option::EXTENDED_HEADERS, &[]).1, kind::ACK);
    assert_eq!(ask(&mut stream, proto::option::STARTTLS, &[]).1, kind::ACK);
    let mut stream = wrap(stream, &authority.client(None));
    assert_eq!(ask(&mut stream, proto::option::STARTTLS, &[]).1, kind::ERR_INVALID, "T-05");
    // T-06: extended headers are off again, so structured replies can be negotiated, and without
    // them a read gets a simple reply.
    assert_eq!(ask(&mut stream, proto::option::GO, &go_data("disk", &[])).1, kind::ACK);
    stream.write_all(&request(command::READ, 0, 5, 0, 512)).unwrap();
    let mut reply = [0; 16 + 512];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..4], proto::SIMPLE_REPLY_MAGIC.to_be_bytes());
}

fn the_end_of_a_session_sends_close_notify(engine: Engine) {
    let (authority, server, socket) = certified_server(engine, Tls::Forced, false);
    let tls = authority.client(None);
    let ends_well = |mut client: Client<TlsStream>| {
        // Without close_notify this is an error, as the stream may have been truncated.
        client.stream.read(&mut [0; 16]).map_err(|error| error.kind())
    };
    let mut client = enter(connect(&socket), &tls, &config("disk")).unwrap();
    client.send(NbdCommand::Disconnect, 0, 0, 0, &[]);
    assert_eq!(ends_well(client), Ok(0), "after a disconnect");
    let client = enter(connect(&socket), &tls, &config("disk")).unwrap();
    server.runtime.stop(|_| {}).unwrap();
    assert_eq!(ends_well(client), Ok(0), "when the server stops");
}

fn a_session_that_cannot_go_over_is_ended_with_close_notify(engine: Engine) {
    let (authority, server, socket) = certified_server(engine, Tls::Selective, false);
    let mut encrypted = enter(connect(&socket), &authority.client(None), &config("disk")).unwrap();
    let mut plain = Client::enter(connect(&socket), &config("disk")).unwrap();
    let mut negotiating = greeted(&socket);
    encrypted.read(0, 512).unwrap();
    plain.read(0, 512).unwrap();
    server.nbd.begin_handover();
    server.runtime.pause().unwrap();
    let (handed, closed) = server.nbd.end_handover();
    assert!(handed.len() == 1 && handed[0].session.is_some(), "{handed:?}");
    assert_eq!(closed, 2);
    let end = encrypted.stream.read(&mut [0; 16]);
    assert_eq!(end.map_err(|error| error.kind()), Ok(0), "the end of TLS is announced");
    assert_eq!(negotiating.read(&mut [0; 16]).unwrap_or(0), 0);
    // The socket of the other one is still open.
    plain.stream.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
    let waits = plain.stream.read(&mut [0; 16]).unwrap_err().kind();
    assert_eq!(waits, std::io::ErrorKind::WouldBlock);
}

fn a_renewed_certificate_serves_new_clients(engine: Engine) {
    let (old, new) = (Authority::new(), Authority::new());
    let setup = TlsSetup::new(Some((Tls::Forced, old.server(None))));
    let (_server, socket) = tls_server(engine, setup.clone(), false);
    let mut before = enter(connect(&socket), &old.client(None), &config("disk")).unwrap();
    setup.replace(Some((Tls::Forced, new.server(None))));
    let mut after = enter(connect(&socket), &new.client(None), &config("disk")).unwrap();
    assert_eq!(after.write(0, &[1; 512]), Ok(()));
    assert_eq!(before.read(0, 512), Ok(vec![1; 512]), "P-13: open sessions stay");
    assert!(!is_accepted(&socket, &old.client(None)));
}

fn garbage_instead_of_tls_ends_the_connection(engine: Engine) {
    let (_, server, socket) = certified_server(engine, Tls::Forced, false);
    let mut random = crate::common::random::Random::new(8);
    for len in [1usize, 5, 6, 100, 20_000] {
        for _ in 0..20 {
            let mut stream = greeted(&socket);
            assert_eq!(ask(&mut stream, proto::option::STARTTLS, &[]).1, kind::ACK);
            let mut bytes = random.bytes(len);
            if random.one_in(2) {
                // A valid beginning of a TLS record.
                bytes.splice(0..0, [22, 3, 1, 0, 100]);
            }
            let _ = stream.write_all(&bytes);
        }
    }
    wait_until("the clients are removed", PATIENCE, || {
        server.runtime.status().unwrap().connections == 0
    });
}

fn bytes_after_the_end_of_tls_do_not_hang_the_worker(engine: Engine) {
    let (authority, server, socket) = certified_server(engine, Tls::Forced, false);
    for len in [1usize, 100, 5000, 100_000] {
        let mut client = enter(connect(&socket), &authority.client(None), &config("disk")).unwrap();
        let mut bytes = Vec::new();
        client.stream.conn.send_close_notify();
        client.stream.conn.write_tls(&mut bytes).unwrap();
        bytes.resize(bytes.len() + len, 0);
        let _ = client.stream.sock.write_all(&bytes);
        let socket = client.stream.sock;
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        let ended = (&socket).read_to_end(&mut rest);
        let timed_out = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
        assert!(!ended.as_ref().is_err_and(timed_out), "{len}: the server hangs");
    }
    for _ in 0..4 {
        assert_eq!(server.client("open").read(0, 512), Ok(vec![0; 512]));
    }
}

fn a_tls_client_that_never_reads_does_not_delay_other_clients(engine: Engine) {
    let (authority, server, socket) = certified_server(engine, Tls::Forced, false);
    let tls = authority.client(None);
    let mut deaf = enter(connect(&socket), &tls, &config("disk")).unwrap();
    deaf.stream.sock.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut bytes = Vec::new();
    for n in 0..1000 {
        deaf.put(NbdCommand::Read, 0, n % 79 * MIB, MIB, &mut bytes);
    }
    let _ = deaf.stream.write_all(&bytes);
    let mut client = enter(connect(&socket), &tls, &config("disk")).unwrap();
    for n in 0..50u64 {
        assert_eq!(client.write(n * 65536, &[n as u8; 65536]), Ok(()));
        assert_eq!(client.read(n * 65536, 65536), Ok(vec![n as u8; 65536]));
    }
    drop(deaf);
    wait_until("it is gone", PATIENCE, || server.status("disk").connections == 1);
}

fn a_client_may_disconnect_during_the_tls_handshake(engine: Engine) {
    let (authority, server, socket) = certified_server(engine, Tls::Forced, false);
    let tls = authority.client(None);
    let mut hello = Vec::new();
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(tls, name).unwrap().write_tls(&mut hello).unwrap();
    for len in (0..=hello.len()).step_by(7) {
        let mut stream = greeted(&socket);
        assert_eq!(ask(&mut stream, proto::option::STARTTLS, &[]).1, kind::ACK);
        stream.write_all(&hello[..len]).unwrap();
    }
    wait_until("the clients are removed", PATIENCE, || {
        server.runtime.status().unwrap().connections == 0
    });
}

/// The end of the stream arrives while the acknowledgement of STARTTLS waits for the client to
/// read.
fn a_client_that_sends_nothing_after_starttls_is_removed(engine: Engine) {
    let (_, server, socket) = certified_server(engine, Tls::Selective, false);
    let unanswered = || {
        let mut stream = connect(&socket);
        greeting(&mut stream);
        stream.write_all(&client_flags()).unwrap();
        stream
    };
    let mut first = unanswered();
    let a_while = Duration::from_millis(500);
    let count = (0..).find(|_| !is_answered(&mut first, a_while)).unwrap();
    drop(first);
    let mut stream = unanswered();
    for _ in 0..count {
        assert!(is_answered(&mut stream, PATIENCE));
    }
    stream.write_all(&option(proto::option::STARTTLS, &[])).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let _ = stream.read_to_end(&mut Vec::new());
    wait_until("the clients are removed", PATIENCE, || {
        server.runtime.status().unwrap().connections == 0
    });
}

/// Sends an option and does not read the answer. Returns whether one arrives in time.
fn is_answered(stream: &mut UnixStream, time: Duration) -> bool {
    let waiting = |stream: &UnixStream| rustix::io::ioctl_fionread(stream).unwrap();
    let before = waiting(stream);
    stream.write_all(&option(proto::option::LIST, &[])).unwrap();
    let until = Instant::now() + time;
    while waiting(stream) == before && Instant::now() < until {
        std::thread::yield_now();
    }
    waiting(stream) > before
}
