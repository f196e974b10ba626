//! The hosts that DNS names, by records of the type SRV (RFC 2782).
//!
//! The system's resolver has no call for these records, so the name servers of `/etc/resolv.conf`
//! are asked here, over UDP, and over TCP if an answer is too long (RFC 1035).

use forebay_config::HttpAddress;
use rustix::rand::{GetRandomFlags, getrandom};
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

const RESOLV_CONF: &str = "/etc/resolv.conf";
const PORT: u16 = 53;
/// Name servers that are asked, as the C library does.
const SERVERS_MAX: usize = 3;
/// How long one of them is waited for.
const LIMIT: Duration = Duration::from_millis(1500);
/// Largest answer over UDP, in bytes.
const UDP_BYTES_MAX: usize = 4096;

/// The name servers of the system.
pub(crate) fn servers() -> Vec<SocketAddr> {
    let text = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    let named = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next()?.parse::<IpAddr>().ok())?
    });
    let mut servers: Vec<_> = named.take(SERVERS_MAX).map(|ip| SocketAddr::new(ip, PORT)).collect();
    if servers.is_empty() {
        servers.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT));
    }
    servers
}

/// The targets of the records of `name`, as one of `servers` knows them. Their priorities and
/// weights mean nothing here: all of them are watched.
///
/// # Errors
/// No server answers, or there is no such name; the text says why.
pub(crate) async fn addresses(
    servers: &[SocketAddr],
    name: &str,
) -> Result<Vec<HttpAddress>, String> {
    let mut problem = "there is no name server".to_owned();
    for server in servers {
        let asked = tokio::time::timeout(LIMIT, ask(*server, name)).await;
        match asked.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut))) {
            Ok(answer) => match targets(&answer) {
                Ok(targets) => return Ok(targets),
                Err(error) => problem = format!("the name server {server}: {error}"),
            },
            Err(error) => problem = format!("the name server {server}: {error}"),
        }
    }
    Err(problem)
}

/// Asks a name server. Returns its answer.
async fn ask(server: SocketAddr, name: &str) -> io::Result<Vec<u8>> {
    // Random, so that a host that does not see the question cannot forge an answer to it.
    let mut number = [0; 2];
    getrandom(&mut number, GetRandomFlags::empty())?;
    let question = question(u16::from_ne_bytes(number), name)?;
    let local: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(server).await?;
    socket.send(&question).await?;
    let mut answer = vec![0; UDP_BYTES_MAX];
    loop {
        let length = socket.recv(&mut answer).await?;
        // The flags of the answer are the third byte: 0x80 an answer, 0x02 cut off.
        match &answer[..length] {
            [a, b, flags, ..] if [*a, *b] == question[..2] && flags & 0x80 != 0 => {
                if flags & 0x02 != 0 {
                    return ask_at_length(server, &question).await;
                }
                answer.truncate(length);
                return Ok(answer);
            }
            _ => {}
        }
    }
}

/// Asks over TCP, where a message has its length before it.
async fn ask_at_length(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), question].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

fn question(number: u16, name: &str) -> io::Result<Vec<u8>> {
    let mut packet = Packet::new_query(number);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = name.strip_suffix('.').unwrap_or(name);
    let name = Name::new(name).map_err(io::Error::other)?;
    let (kind, class) = (QTYPE::TYPE(TYPE::SRV), QCLASS::CLASS(CLASS::IN));
    packet.questions.push(Question::new(name, kind, class, false));
    packet.build_bytes_vec().map_err(io::Error::other)
}

fn targets(answer: &[u8]) -> Result<Vec<HttpAddress>, String> {
    let packet = Packet::parse(answer).map_err(|error| format!("invalid answer ({error})"))?;
    match packet.rcode() {
        RCODE::NoError => {}
        RCODE::NameError => return Err("there is no such name".to_owned()),
        code => return Err(format!("it answers {code:?}")),
    }
    let targets = packet.answers.iter().filter_map(|record| match &record.rdata {
        RData::SRV(target) => Some(HttpAddress {
            is_tls: true,
            host: target.target.to_string().to_ascii_lowercase(),
            port: target.port,
        }),
        _ => None,
    });
    // A target that is the root says that there is no such service.
    Ok(targets.filter(|it| !it.host.is_empty() && it.port > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::SRV;
    use std::io::{Read, Write};

    const NAME: &str = "_forebay._tcp.example.";

    /// The answer to a question, with these targets.
    fn answer(question: &[u8], targets: &[(&'static str, u16)]) -> Vec<u8> {
        let asked = Packet::parse(question).unwrap();
        let mut answer = Packet::new_reply(asked.id());
        let name = asked.questions[0].qname.clone();
        for &(target, port) in targets {
            let target = Name::new(target).unwrap();
            let data = RData::SRV(SRV { priority: 0, weight: 0, port, target });
            answer.answers.push(ResourceRecord::new(name.clone(), CLASS::IN, 60, data));
        }
        answer.questions = asked.questions;
        answer.build_bytes_vec_compressed().unwrap()
    }

    /// Answers one question over UDP.
    fn name_server(respond: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> SocketAddr {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            let (length, client) = socket.recv_from(&mut buffer).unwrap();
            // A packet that is no answer to the question.
            socket.send_to(&[0; 40], client).unwrap();
            socket.send_to(&respond(&buffer[..length]), client).unwrap();
        });
        address
    }

    fn found(server: SocketAddr) -> Result<Vec<String>, String> {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let found = tokio.block_on(addresses(&[server], NAME))?;
        Ok(found.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_targets_of_records_are_encrypted_dashboards() {
        let targets = &[("nas1.example", 8443), ("NAS2.example", 9443), ("", 0)];
        let server = name_server(move |question| answer(question, targets));
        let shown = ["https://nas1.example:8443", "https://nas2.example:9443"];
        assert_eq!(found(server).unwrap(), shown);
        assert_eq!(found(name_server(|question| answer(question, &[]))).unwrap(), [""; 0]);
    }

    #[test]
    fn an_answer_that_was_cut_off_is_asked_for_over_tcp() {
        let server = name_server(|question| {
            let mut cut = answer(question, &[]);
            cut[2] |= 0x02;
            cut
        });
        let listener = std::net::TcpListener::bind(server).unwrap();
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut question).unwrap();
            let answer = answer(&question, &[("nas1.example", 8443)]);
            stream.write_all(&(answer.len() as u16).to_be_bytes()).unwrap();
            stream.write_all(&answer).unwrap();
        });
        assert_eq!(found(server).unwrap(), ["https://nas1.example:8443"]);
        served.join().unwrap();
    }

    #[test]
    fn a_name_server_that_knows_nothing_says_so() {
        let server = name_server(|question| {
            let mut refusal = answer(question, &[]);
            refusal[3] |= 3;
            refusal
        });
        assert!(found(server).unwrap_err().contains("there is no such name"));
        let error = found(name_server(|question| question[..12].to_vec())).unwrap_err();
        assert!(error.contains("timed out"), "no answer: {error}");
        let error = found(name_server(|question| {
            let mut torn = answer(question, &[("nas1.example", 1)]);
            torn.truncate(torn.len() - 3);
            torn
        }));
        assert!(error.unwrap_err().contains("invalid answer"));
    }
}
