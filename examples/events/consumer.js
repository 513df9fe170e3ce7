// Reacts to changed rows: node consumer.js BROKERS [TOPIC] [GROUP] [COUNT]. Needs kafkajs, and publishers with `?format=json`.
// After COUNT events it ends. The offset of an event is committed after it was processed, so an event may come twice: by
// ce_sequence a table's events that were processed are told.
const { Kafka, logLevel } = require("kafkajs");

const [brokers, topic = "tideline.timeline", group = "reports", count = "Infinity"] = process.argv.slice(2);
const consumer = new Kafka({ brokers: brokers.split(","), logLevel: logLevel.ERROR }).consumer({ groupId: group });
const processed = new Map();
let left = Number(count);

async function main() {
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ message: { key, value, headers } }) => {
      const table = key.toString();
      const sequence = BigInt(headers.ce_sequence.toString());
      if (headers.ce_datachange.toString() !== "true" || sequence <= (processed.get(table) ?? -1n) || left <= 0) return;
      if (headers["content-type"].toString() !== "application/json") throw new Error("publish with ?format=json");
      const event = JSON.parse(value);
      console.log(`${event.table.name} ${event.sequence} ${event.operation} ${event.rows_inserted} ${event.partitions}`);
      processed.set(table, sequence);
      if (--left === 0) setImmediate(() => consumer.disconnect());
    },
  });
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
