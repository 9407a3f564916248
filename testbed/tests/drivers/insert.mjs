// Inserts one document by the driver and reads it back; the URI is the first argument.
import { MongoClient } from 'mongodb';

const client = new MongoClient(process.argv[2]);
const users = client.db('node').collection('users');
await users.insertOne({ _id: 1, name: 'Ada' });
console.log((await users.findOne({ _id: 1 })).name);
await client.close();
