//! `forebay clients`: the connected clients, and the end of a connection.

use super::connect;
use crate::arguments::{ClientsArguments, ClientsCommand};
use crate::report::{print, print_json};
use forebay_api::{ConnectedClient, ConnectedClients};
use forebay_terminal::columns::{lines, table};
use forebay_terminal::units::{bytes, count};

/// `forebay clients`.
pub(crate) fn clients(arguments: &ClientsArguments) -> anyhow::Result<()> {
    match &arguments.command {
        Some(ClientsCommand::Disconnect { id, show }) => {
            let client = connect(&show.state)?.disconnect_client(*id)?;
            if show.json { print_json(&client) } else { print(&ended(&client)) }
        }
        None => {
            let clients = connect(&arguments.show.state)?.clients()?;
            if arguments.show.json { print_json(&clients) } else { print(&text(&clients)) }
        }
    }
}

fn text(connected: &ConnectedClients) -> String {
    if connected.clients.is_empty() {
        return "no clients are connected\n".to_owned();
    }
    let mut table =
        table(["ID", "VOLUME", "IN FLIGHT", "READ", "WRITTEN", "TLS", "CONNECTED", "CLIENT"]);
    for client in &connected.clients {
        table.add_row([
            client.id.to_string(),
            client.volume.as_deref().unwrap_or("-").to_owned(),
            count(client.requests_in_flight),
            bytes(client.read_bytes),
            bytes(client.written_bytes),
            if client.tls { "yes" } else { "no" }.to_owned(),
            client.connected_at.clone(),
            who(client),
        ]);
    }
    lines(table, &[1, 5, 6, 7])
}

/// What a client is, with its user.
fn who(client: &ConnectedClient) -> String {
    let user = client.user.iter().map(|user| format!(", user {user}")).collect::<String>();
    format!("{}{user}", client.client)
}

fn ended(client: &ConnectedClient) -> String {
    let of = client.volume.iter().map(|name| format!(" of '{name}'")).collect::<String>();
    let unanswered = match client.requests_in_flight {
        0 => String::new(),
        1 => "; 1 request was not answered".to_owned(),
        requests => format!("; {} requests were not answered", count(requests)),
    };
    format!("client {}{of} is disconnected: {}{unanswered}\n", client.id, who(client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_a_line() {
        let guest = ConnectedClient {
            id: 3,
            volume: Some("db".into()),
            client: "process 812 (qemu-system-x86)".into(),
            process: Some(812),
            user: Some("libvirt-qemu".into()),
            connected_at: "2026-02-28T13:05:09Z".into(),
            requests_in_flight: 4,
            read_bytes: 3 << 30,
            written_bytes: 512 << 10,
            ..ConnectedClient::default()
        };
        let silent = ConnectedClient {
            id: 12,
            client: "192.0.2.7:40012".into(),
            connected_at: "2026-02-28T13:06:00Z".into(),
            tls: true,
            ..ConnectedClient::default()
        };
        assert_eq!(
            ended(&guest),
            "client 3 of 'db' is disconnected: process 812 (qemu-system-x86), user libvirt-qemu; \
             4 requests were not answered\n"
        );
        assert_eq!(ended(&silent), "client 12 is disconnected: 192.0.2.7:40012\n");
        let clients = ConnectedClients { instance: 1, clients: vec![guest, silent] };
        let [head, first, second] =
            &text(&clients).lines().map(str::to_owned).collect::<Vec<_>>()[..]
        else {
            panic!("{}", text(&clients))
        };
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(head), "ID VOLUME IN FLIGHT READ WRITTEN TLS CONNECTED CLIENT");
        assert_eq!(
            words(first),
            "3 db 4 3.0 GiB 512 KiB no 2026-02-28T13:05:09Z process 812 (qemu-system-x86), user \
             libvirt-qemu"
        );
        assert_eq!(words(second), "12 - 0 0 B 0 B yes 2026-02-28T13:06:00Z 192.0.2.7:40012");
        assert_eq!(text(&ConnectedClients::default()), "no clients are connected\n");
    }
}
