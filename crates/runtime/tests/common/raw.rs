//! The protocol byte by byte, for invalid requests.

use super::client::connect;
use forebay_nbd::proto::{
    GREETING_BYTES, GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, REQUEST_MAGIC,
    SIMPLE_REPLY_MAGIC, handshake_flag, option, option_reply,
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Reads the greeting and checks it.
pub fn greeting(stream: &mut impl Read) {
    let mut bytes = [0; GREETING_BYTES];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..8], GREETING_MAGIC.to_be_bytes());
    assert_eq!(bytes[8..16], OPTION_MAGIC.to_be_bytes());
    assert_eq!(bytes[16..], [0, 3], "fixed newstyle, no zeroes, and nothing else");
}

/// The client's flags: fixed newstyle and no zeroes.
pub fn client_flags() -> Vec<u8> {
    let flags = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    flags.to_be_bytes().to_vec()
}

/// Connects to a Unix socket, and answers the greeting with the client's flags.
pub fn greeted(socket: &Path) -> UnixStream {
    let mut stream = connect(socket);
    greeting(&mut stream);
    stream.write_all(&client_flags()).unwrap();
    stream
}

/// An option whose header claims `len` bytes of data, followed by `data`.
pub fn option_claiming(option: u32, len: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    option_claiming(option, data.len() as u32, data)
}

/// The data of `GO` and `INFO`.
pub fn go_data(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(infos.len() as u16).to_be_bytes());
    infos.iter().for_each(|info| data.extend_from_slice(&info.to_be_bytes()));
    data
}

/// Reads one reply to an option: its kind and its data.
pub fn option_reply(stream: &mut impl Read, sent: u32) -> (u32, Vec<u8>) {
    let mut header = [0; 20];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(header[..8], OPTION_REPLY_MAGIC.to_be_bytes());
    assert_eq!(header[8..12], sent.to_be_bytes(), "the reply is to what was sent");
    let kind = u32::from_be_bytes(header[12..16].try_into().unwrap());
    let len = u32::from_be_bytes(header[16..].try_into().unwrap());
    let mut data = vec![0; len as usize];
    stream.read_exact(&mut data).unwrap();
    (kind, data)
}

/// Sends an option and reads its replies up to the final one, whose kind comes last.
pub fn ask<S: Read + Write>(stream: &mut S, sent: u32, data: &[u8]) -> (Vec<Vec<u8>>, u32) {
    stream.write_all(&option(sent, data)).unwrap();
    let mut replies = Vec::new();
    loop {
        let (kind, data) = option_reply(stream, sent);
        if kind == option_reply::ACK || kind & option_reply::ERROR_BIT != 0 {
            return (replies, kind);
        }
        replies.push(data);
    }
}

/// Greets and enters an export with simple replies.
pub fn enter<S: Read + Write>(stream: &mut S, export: &str) {
    greeting(stream);
    stream.write_all(&client_flags()).unwrap();
    let (_, last) = ask(stream, option::GO, &go_data(export, &[]));
    assert_eq!(last, option_reply::ACK, "the export is entered");
}

/// Connects to a Unix socket, and enters an export with simple replies.
pub fn connect_to(socket: &Path, export: &str) -> UnixStream {
    let mut stream = connect(socket);
    enter(&mut stream, export);
    stream
}

/// A compact request header.
pub fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

/// Reads a simple reply without data: its error and its cookie.
pub fn simple_reply(stream: &mut impl Read) -> (u32, u64) {
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..4], SIMPLE_REPLY_MAGIC.to_be_bytes());
    let error = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
    (error, u64::from_be_bytes(bytes[8..].try_into().unwrap()))
}

/// Whether the peer closes the connection in time without sending another byte.
pub fn is_closed(stream: &mut impl Read) -> bool {
    // A reset is an end as well: the server had not read everything.
    match stream.read(&mut [0; 64]) {
        Ok(len) => len == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}
