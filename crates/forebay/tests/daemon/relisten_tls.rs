//! Changes of TLS by a reload.

use crate::common::client::{Client, advance, config, connect};
use crate::process::{Daemon, on_one_line};
use crate::relisten::{Configured, free_port};
use forebay_nbd::client::{ClientHandshake, ClientStep, ExportConfig, OpenFailure};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fs;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

/// A certificate and its key, in files for the server.
struct Certificate {
    settings: String,
    client: Arc<ClientConfig>,
}

impl Certificate {
    /// Makes the files `NAME.cert` and `NAME.key`.
    fn make(served: &Configured, name: &str) -> Self {
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let [cert, key] = ["cert", "key"].map(|end| served.at(&format!("{name}.{end}")));
        fs::write(&cert, pair.cert.pem()).unwrap();
        fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
        let files = [cert.display(), key.display()].map(|path| path.to_string());
        let settings = format!("tls-cert = '{}'\ntls-key = '{}'", files[0], files[1]);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(pair.cert.der().to_vec())).unwrap();
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Self { settings, client: Arc::new(client) }
    }

    /// Enters the volume over TLS.
    fn enter(
        &self,
        socket: &Path,
    ) -> Result<Client<StreamOwned<ClientConnection, UnixStream>>, OpenFailure> {
        let mut stream = connect(socket);
        let mut handshake = ClientHandshake::new(ExportConfig { tls: true, ..config("disk") });
        let (mut input, mut out) = (Vec::new(), Vec::new());
        match advance(&mut stream, &mut handshake, &mut input, &mut out) {
            ClientStep::StartTls => {}
            ClientStep::Fail(failure) => return Err(failure),
            step => panic!("an unexpected step: {step:?}"),
        }
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(Arc::clone(&self.client), name).unwrap();
        let mut stream = StreamOwned::new(session, stream);
        handshake.tls_established(&mut out);
        match advance(&mut stream, &mut handshake, &mut input, &mut out) {
            ClientStep::Enter(opened) => Ok(Client::opened(stream, opened, input)),
            ClientStep::Fail(failure) => Err(failure),
            step => panic!("an unexpected step: {step:?}"),
        }
    }
}

/// Whether a client without TLS is served.
fn serves_plain(daemon: &Daemon) -> bool {
    Client::enter(connect(&daemon.socket), &config("disk")).is_ok()
}

#[test]
fn tls_is_switched_on_changed_and_off_and_clients_stay_connected() {
    let base = "nbd = ['unix:DIR/first.sock']";
    let served = Configured::start("auto", base);
    let socket = served.at("first.sock");
    let (first, second) =
        (Certificate::make(&served, "first"), Certificate::make(&served, "second"));
    let mut plain = served.daemon().client("disk");
    assert!(first.enter(&socket).is_err());
    served.reload(&format!("{base}\ntls = 'forced'\n{}", first.settings));
    let mut encrypted = first.enter(&socket).unwrap();
    assert!(!serves_plain(served.daemon()), "new connections have to be encrypted");
    plain.write(0, &[1; 512]).unwrap();
    assert_eq!(encrypted.read(0, 512).unwrap(), [1; 512]);
    served.reload(&format!("{base}\ntls = 'selective'\n{}", second.settings));
    let mut renewed = second.enter(&socket).unwrap();
    assert!(serves_plain(served.daemon()));
    assert_eq!(encrypted.read(0, 512).unwrap(), [1; 512], "with the former certificate");
    // The file at the same path is read again.
    let third = Certificate::make(&served, "second");
    served.reload(&format!("{base}\ntls = 'selective'\n{}", second.settings));
    third.enter(&socket).unwrap();
    // Off, with the certificate in the file or without.
    for tls in ["", "tls = 'off'"] {
        served.reload(&format!("{base}\n{tls}"));
        assert!(third.enter(&socket).is_err());
        assert!(serves_plain(served.daemon()));
        for client in [&mut encrypted, &mut renewed] {
            client.write(512, &[2; 512]).unwrap();
        }
        assert_eq!(plain.read(512, 512).unwrap(), [2; 512]);
    }
    served.stop();
}

#[test]
fn an_address_for_other_machines_opens_with_tls_in_one_reload_and_keeps_it() {
    let base = "nbd = ['unix:DIR/first.sock']";
    let served = Configured::start("auto", base);
    let pair = Certificate::make(&served, "pair");
    let port = free_port();
    let public = format!("nbd = ['unix:DIR/first.sock', 'tcp:0.0.0.0:{port}']");
    let text = served.refused(&public);
    assert!(text.contains("can be reached from other machines"), "{text}");
    served.reload(&format!("{public}\ntls = 'forced'\n{}", pair.settings));
    assert!(!serves_plain(served.daemon()));
    // TLS cannot end while the address is open.
    for (tls, said) in [
        (String::new(), "can be reached from other machines"),
        (
            "tls = 'forced'\ntls-cert = 'DIR/none'\ntls-key = 'DIR/none'".to_owned(),
            "cannot read certificate",
        ),
        ("tls = 'forced'".to_owned(), "there is no certificate"),
    ] {
        served.write(&format!("{public}\n{tls}"));
        let (code, text) = served.daemon().run(&["reload"]);
        assert!(code != Some(0) && on_one_line(&text).contains(said), "{text}");
        assert!(!serves_plain(served.daemon()), "nothing changes");
        pair.enter(&served.at("first.sock")).unwrap();
    }
    served.reload(&format!("{public}\ntls = 'off'"));
    let tcp = TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert!(Client::enter(tcp, &config("disk")).is_ok());
    served.stop();
}

#[test]
fn a_volume_requires_tls_from_the_reload_on_that_switches_it_on() {
    let served = Configured::start("auto", "nbd = ['unix:DIR/first.sock']");
    let pair = Certificate::make(&served, "pair");
    let secret = "[[volume]]\nname = 'secret'\nbacking = 'memory:1MiB'\ntls = 'required'";
    let base = "nbd = ['unix:DIR/first.sock']";
    served.reload(&format!("{base}\ntls = 'selective'\n{}\n{secret}", pair.settings));
    assert!(Client::enter(connect(&served.at("first.sock")), &config("secret")).is_err());
    assert!(serves_plain(served.daemon()));
    let text = served.refused(&format!("{base}\n{secret}"));
    assert!(text.contains("tls=required"), "{text}");
    served.stop();
}
