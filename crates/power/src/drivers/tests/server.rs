//! A small NUT server that misbehaves on request.

use rustix::net;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The reaction to a line.
pub(super) enum Act {
    Reply(String),
    ReplyAndClose(String),
    /// One byte at a time, slowly.
    Drip(String),
    /// Never answer it.
    Hang,
    /// Answer OK and start TLS.
    Encrypt,
}

type Script = dyn Fn(usize, &str) -> Act + Send + Sync;

#[derive(Default)]
struct Shared {
    lines: Mutex<Vec<String>>,
    /// Lines received in plain text.
    plain: Mutex<Vec<String>>,
    sockets: Mutex<Vec<TcpStream>>,
    connections: AtomicUsize,
}

pub(super) struct Server {
    pub(super) port: u16,
    shared: Arc<Shared>,
    listener: Arc<TcpListener>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// A server that calls `script` for each line, with the number of the connection.
    pub(super) fn start(script: impl Fn(usize, &str) -> Act + Send + Sync + 'static) -> Self {
        Self::start_with(None, Arc::new(script))
    }

    pub(super) fn start_tls(
        config: Arc<ServerConfig>,
        script: impl Fn(usize, &str) -> Act + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(Some(config), Arc::new(script))
    }

    fn start_with(config: Option<Arc<ServerConfig>>, script: Arc<Script>) -> Self {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let (inner, accepting) = (Arc::clone(&shared), Arc::clone(&listener));
        let thread = thread::spawn(move || {
            for socket in accepting.incoming().map_while(Result::ok) {
                inner.sockets.lock().unwrap().push(socket.try_clone().unwrap());
                let number = inner.connections.fetch_add(1, Ordering::SeqCst);
                let (script, config) = (Arc::clone(&script), config.clone());
                let inner = Arc::clone(&inner);
                thread::spawn(move || {
                    serve(socket.try_clone().unwrap(), number, &*script, &inner, config);
                    // The clone kept for stopping would hold the connection open.
                    let _ = socket.shutdown(Shutdown::Both);
                });
            }
        });
        Self { port, shared, listener, thread: Some(thread) }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.shared.lines.lock().unwrap().clone()
    }

    pub(super) fn plain_lines(&self) -> Vec<String> {
        self.shared.plain.lock().unwrap().clone()
    }

    pub(super) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Ends all connections, and refuses new ones.
    pub(super) fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // A child that another test starts has a copy of the listener until it executes its
        // program, so a closed one would still accept. Shutting it down refuses at once, and
        // ends the accepting thread. The port stays taken.
        net::shutdown(&self.listener, net::Shutdown::Both).unwrap();
        thread.join().unwrap();
        for socket in self.shared.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The reply of a correct server to `LIST VAR lab`.
pub(super) fn list(status: &str, charge: u32) -> String {
    format!(
        "BEGIN LIST VAR lab\nVAR lab ups.status \"{status}\"\nVAR lab battery.charge \
         \"{charge}\"\nVAR lab battery.runtime \"1800\"\nEND LIST VAR lab\n"
    )
}

fn serve(
    socket: TcpStream,
    number: usize,
    script: &Script,
    shared: &Shared,
    config: Option<Arc<ServerConfig>>,
) {
    // Byte by byte, so that no TLS data is consumed before TLS starts.
    let mut stream = BufReader::with_capacity(1, socket);
    while let Some(line) = read_line(&mut stream) {
        shared.plain.lock().unwrap().push(line.clone());
        shared.lines.lock().unwrap().push(line.clone());
        match script(number, &line) {
            Act::Encrypt => {
                stream.get_mut().write_all(b"OK STARTTLS\n").unwrap();
                let session = ServerConnection::new(config.expect("a server with TLS")).unwrap();
                let stream = StreamOwned::new(session, stream.into_inner());
                return serve_tls(stream, number, script, shared);
            }
            act => {
                if !answer(stream.get_mut(), act) {
                    return;
                }
            }
        }
    }
}

fn serve_tls(
    stream: StreamOwned<ServerConnection, TcpStream>,
    number: usize,
    script: &Script,
    shared: &Shared,
) {
    let mut stream = BufReader::with_capacity(1, stream);
    while let Some(line) = read_line(&mut stream) {
        shared.lines.lock().unwrap().push(line.clone());
        if !answer(stream.get_mut(), script(number, &line)) {
            return;
        }
    }
}

fn read_line(stream: &mut BufReader<impl Read>) -> Option<String> {
    let mut line = String::new();
    match stream.read_line(&mut line) {
        Ok(count) if count > 0 => Some(line.trim_end().to_owned()),
        _ => None,
    }
}

/// Carries out the reaction. Returns whether the connection continues.
fn answer(stream: &mut impl Write, act: Act) -> bool {
    match act {
        Act::Reply(text) => stream.write_all(text.as_bytes()).and_then(|()| stream.flush()).is_ok(),
        Act::ReplyAndClose(text) => {
            let _ = stream.write_all(text.as_bytes());
            false
        }
        Act::Drip(text) => text.bytes().all(|byte| {
            thread::sleep(Duration::from_millis(50));
            stream.write_all(&[byte]).is_ok()
        }),
        Act::Hang => true,
        Act::Encrypt => panic!("asked for TLS inside of TLS"),
    }
}

/// A certificate for `name`, as PEM, and a server that has it.
pub(super) fn identity(name: &str) -> (String, Arc<ServerConfig>) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    (made.cert.pem(), Arc::new(config))
}
