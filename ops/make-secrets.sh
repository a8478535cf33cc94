#!/bin/sh
# Make the secrets of docker-compose.yml by chance, in ./secrets; what is there already is kept. Needs openssl.
#
# Others on this machine cannot enter the directory. The files in it are readable, since each process of a container
# is a user of its own.
set -eu
cd "$(dirname "$0")/.."
mkdir -p secrets
chmod 700 secrets
cd secrets
umask 022

for name in web-token postgres-password s3-key grafana-password kafka-password kafka-broker-password; do
    [ -s "$name" ] || openssl rand -hex 24 > "$name"
done

# For deploy/compose.tls.yml: a CA, a certificate of each broker with its key, and who may come in.
if [ ! -s ca.pem ]; then
    openssl req -x509 -newkey rsa:3072 -nodes -days 3650 -subj "/CN=steadfaust CA" -keyout ca.key -out ca.pem 2> /dev/null
    chmod 600 ca.key
fi
for broker in kafka-1 kafka-2 kafka-3; do
    [ -s "$broker.pem" ] && continue
    openssl req -newkey rsa:3072 -nodes -subj "/CN=$broker" -keyout "$broker.key" -out "$broker.csr" 2> /dev/null
    printf 'subjectAltName=DNS:%s,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' "$broker" > "$broker.ext"
    openssl x509 -req -in "$broker.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 825 -extfile "$broker.ext" \
        -out "$broker.crt" 2> /dev/null
    cat "$broker.key" "$broker.crt" ca.pem > "$broker.pem"
    rm "$broker.key" "$broker.csr" "$broker.ext" "$broker.crt"
done

own="username=\"broker\" password=\"$(cat kafka-broker-password)\""
module="org.apache.kafka.common.security.plain.PlainLoginModule required"
echo "$module $own user_broker=\"$(cat kafka-broker-password)\" user_orders=\"$(cat kafka-password)\";" > kafka-jaas
