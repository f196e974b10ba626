//! Tests of the client against a server that misbehaves. The control server's tests cover a correct
//! one.

use super::*;
use crate::{BlockingClient, ErrorKind};
use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    thread,
};

/// Reads the head of a request, and returns false if the client gives up before its end. An answer
/// that arrives before its request would violate the protocol.
fn read_head(stream: &mut UnixStream) -> bool {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).unwrap() == 0 {
            return false;
        }
        head.push(byte[0]);
    }
    true
}

/// The client's result if the server answers with these bytes and closes the connection.
fn answer<T>(bytes: &str, ask: impl FnOnce(&BlockingClient) -> T) -> T {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let bytes = bytes.to_owned();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(read_head(&mut stream));
        stream.write_all(bytes.as_bytes()).unwrap();
    });
    let result = ask(&BlockingClient::new(&socket).unwrap());
    server.join().unwrap();
    result
}

fn stream(lines: &str) -> (ClientResult<()>, Vec<Progress>) {
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
    let mut seen = Vec::new();
    let result = answer(&format!("{head}{lines}"), |client| {
        client.flush_volume("disk", |progress| seen.push(progress))
    });
    (result, seen)
}

#[test]
fn a_stream_ends_with_done_or_an_error() {
    let progress = r#"{"progress":{"dirty_bytes_left":1,"dirty_bytes_total":2}}"#;
    let (running, done) = (r#"{"running":{}}"#, r#"{"done":{}}"#);
    let (result, seen) = stream(&format!("{running}\n{progress}\n{progress}\n{done}\n"));
    result.unwrap();
    assert_eq!(seen, [Progress { dirty_bytes_left: 1, dirty_bytes_total: 2 }; 2]);
    let (result, _) = stream(
        "{\"error\":{\"kind\":\"failed\",\"message\":\"disk broke\",\"remedy\":\"replace it\"}}\n",
    );
    let error = result.unwrap_err();
    assert_eq!(error.explained(), "disk broke: replace it");
    assert!(matches!(error, ClientError::Refused(Problem { kind: ErrorKind::Failed, .. })));
}

#[test]
fn a_stream_that_is_cut_off_is_an_error() {
    for lines in
        ["", "{\"progress\":{\"dirty_bytes_left\":1,\"dirty_bytes_total\":2}}\n", "{\"done\":{}}"]
    {
        let (result, _) = stream(lines);
        assert!(matches!(result, Err(ClientError::Cut { .. })), "{lines}: {result:?}");
    }
}

#[test]
fn invalid_and_endless_lines_are_refused() {
    let (result, _) = stream("{\"finished\":{}}\n");
    assert!(matches!(result, Err(ClientError::Answer { .. })), "{result:?}");
    let (result, _) = stream(&"x".repeat(LINE_BYTES_MAX + 1));
    assert!(matches!(result, Err(ClientError::Answer { .. })), "{result:?}");
}

#[test]
fn invalid_answers_are_refused() {
    let error = answer("SSH-2.0\r\n", BlockingClient::status).unwrap_err();
    assert!(matches!(error, ClientError::Cut { .. }), "{error:?}");
    let error = answer("HTTP/1.1 502 Bad\r\ncontent-length: 0\r\n\r\n", BlockingClient::status);
    assert!(error.unwrap_err().to_string().contains("status 502"));
    let error = answer("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", BlockingClient::status);
    assert!(error.unwrap_err().to_string().contains("missing field"));
    let error = answer("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{}", BlockingClient::status);
    assert!(matches!(error, Err(ClientError::Cut { .. })), "{error:?}");
}

/// The client's error if the server sends these bytes and then nothing more.
fn silence<T>(bytes: &str, ask: impl AsyncFn(&Client) -> ClientResult<T>) -> ClientError {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let limit = Duration::from_millis(50);
    let timeouts = AnswerTimeouts { query: limit, request: limit, line: limit };
    let client = Client { socket, timeouts };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bytes = bytes.to_owned();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        if read_head(&mut stream) {
            // The client may have given up by now.
            let _ = stream.write_all(bytes.as_bytes());
        }
        // Ends when the client gives up.
        let _ = stream.read_to_end(&mut Vec::new());
        drop(directory);
    });
    let error = runtime.block_on(ask(&client)).err().unwrap();
    // The runtime owns the connection.
    drop(runtime);
    server.join().unwrap();
    error
}

#[test]
fn a_silent_server_times_out() {
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
    let progress = r#"{"progress":{"dirty_bytes_left":1,"dirty_bytes_total":2}}"#;
    let line = format!("{head}{progress}\n");
    for error in [
        silence("", async |client| client.status().await),
        silence(head, async |client| client.status().await),
        silence("", async |client| client.volume_list().await),
        silence("", async |client| client.calibrate_volume("disk").await),
        silence("", async |client| client.stop(false, |_| ()).await),
        silence(&line, async |client| client.stop(false, |_| ()).await),
    ] {
        assert!(matches!(error, ClientError::TimedOut { .. }), "{error:?}");
        let text = error.explained();
        assert!(
            text.contains("control.sock has not answered for 0 s: see the server's log"),
            "{text}"
        );
    }
}

#[test]
fn without_a_server_the_remedy_is_to_start_one() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let ask = || BlockingClient::new(&socket).unwrap().status().unwrap_err();
    assert!(matches!(ask(), ClientError::NotRunning { .. }));
    drop(UnixListener::bind(&socket).unwrap());
    let error = ask();
    assert!(matches!(error, ClientError::NotRunning { .. }), "a stale socket: {error:?}");
    assert!(error.explained().contains("start a server"), "{error}");
    std::fs::remove_file(&socket).unwrap();
    std::os::unix::fs::symlink(&socket, &socket).unwrap();
    assert!(matches!(ask(), ClientError::Connect { .. }), "a link to itself");
}
